"""The exchange of a communicator's id over TCP: who is let in, who is not, and what each is told."""

import socket
import struct
import threading
import time

import launched
import pytest

from accelrt import nccl
from accelrt.nccl import rendezvous
from accelrt.nccl.launcher import Place

pytestmark = pytest.mark.own_process
ID = bytes(range(128))


def place(rank, size, port, **changes):
    fields = {
        "launcher": "torchrun",
        "rank": rank,
        "size": size,
        "local_rank": rank,
        "local_size": size,
        "address": "127.0.0.1",
        "port": port,
        "taken": False,
        "job": "job",
    }
    return Place(**(fields | changes))


@pytest.fixture(autouse=True)
def _first_exchange(monkeypatch):
    monkeypatch.setattr(rendezvous, "_exchanged", 0)


class Ranks:
    """Ranks in threads of this process, which share one count of exchanges: each is given its number."""

    def __init__(self):
        self.found = {}
        self.threads = []

    def start(self, where, timeout=20.0, name=None, number=0):
        def run():
            end = time.monotonic() + timeout
            try:
                if where.rank == 0:
                    rendezvous._Server(where, number, ID, end, timeout).serve()
                    self.found[name or 0] = ID
                else:
                    self.found[name or where.rank] = rendezvous._ask(where, number, end, timeout)
            except Exception as error:
                self.found[name or where.rank] = error

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def join(self):
        for each in self.threads:
            each.join(60)
        return self.found


@pytest.fixture
def ranks():
    return Ranks()


def test_all_ranks_get_rank_zeros_bytes(ranks):
    port = launched.free_port()
    for rank in (3, 1, 0, 2):
        ranks.start(place(rank, 4, port))
    assert ranks.join() == dict.fromkeys(range(4), ID)


def test_one_rank_alone_asks_nobody():
    assert nccl.exchange(lambda: ID, place(0, 1, 1)) == ID


def test_strangers_are_cut_off_and_change_nothing(ranks):
    port = launched.free_port()
    ranks.start(place(0, 2, port))
    strangers = []
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"", rendezvous.HELLO, b"accelrt", bytes(200)):
        deadline = time.monotonic() + 10
        while True:
            try:
                strangers.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        strangers[-1].sendall(said)
    other_job = rendezvous.QUESTION.pack(rendezvous.HELLO, bytes(16), 2, 1, 0)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as guess:
        guess.sendall(other_job)
        assert guess.recv(1) == b""  # no id for it
    ranks.start(place(1, 2, port))
    assert ranks.join() == {0: ID, 1: ID}
    for each in strangers:
        each.close()


def test_a_port_that_is_taken_is_passed_over(ranks):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()  # and answers nothing, as torchrun's own server on MASTER_PORT
        port = taken.getsockname()[1]
        where = {"taken": True}
        for rank in range(2):
            ranks.start(place(rank, 2, port, **where))
        assert ranks.join() == {0: ID, 1: ID}


def test_something_else_on_the_port_is_left_alone(ranks, monkeypatch):
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for rank in range(2):
            ranks.start(place(rank, 2, port))
        assert ranks.join() == {0: ID, 1: ID}


def test_ranks_that_do_not_come_are_named(ranks):
    port = launched.free_port()
    ranks.start(place(0, 4, port), timeout=0.5)
    ranks.start(place(2, 4, port), timeout=20)
    found = ranks.join()
    assert found[2] == ID
    with pytest.raises(TimeoutError, match=r"ranks 1, 3 of 4 did not come to 127.0.0.1:\d+ within 0.5 s"):
        raise found[0]


def test_a_rank_without_rank_zero_says_where_it_looked():
    port = launched.free_port()
    with pytest.raises(
        TimeoutError, match=r"rank 1 of 2 found no rank 0 at 127.0.0.1, ports \d+ to \d+, within 0.2"
    ):
        nccl.exchange(lambda: ID, place(1, 2, port), timeout=0.2)


def test_ranks_that_disagree_on_their_number_are_told(ranks):
    port = launched.free_port()
    ranks.start(place(0, 2, port), timeout=1.0)
    ranks.start(place(1, 3, port), name="other")
    found = ranks.join()
    with pytest.raises(RuntimeError, match="rank 1 says that there are 3 ranks, rank 0 that there are 2"):
        raise found["other"]
    with pytest.raises(TimeoutError, match="there are 3 ranks"):
        raise found[0]


def test_a_number_given_twice_is_refused_once_the_first_has_its_id(ranks):
    port = launched.free_port()
    ranks.start(place(0, 3, port), timeout=2)
    ranks.start(place(1, 3, port))
    ranks.threads[1].join(20)
    ranks.start(place(1, 3, port), name="twin")
    found = ranks.join()
    assert found[1] == ID
    with pytest.raises(RuntimeError, match="rank 1 asked twice: two processes have that number"):
        raise found["twin"]


def test_an_early_rank_of_the_next_communicator_waits_for_it(ranks):
    port = launched.free_port()
    ranks.start(place(1, 2, port), name="next", number=1)
    ranks.start(place(0, 2, port))
    ranks.start(place(1, 2, port))
    for each in ranks.threads[1:]:
        each.join(20)
    assert "next" not in ranks.found
    ranks.start(place(0, 2, port), number=1, name="zero again")
    assert ranks.join() == {0: ID, 1: ID, "next": ID, "zero again": ID}


def test_answers_are_packed_alike_on_every_machine():
    assert rendezvous.QUESTION.size == struct.calcsize("<24s16sIII") == 52
    assert len(rendezvous.HELLO) == 24
