"""The exchange of a communicator's id over TCP: who is let in, who is not, and what each is told."""

import os
import signal
import socket
import threading
import time

import launched
import pytest
from waiting import wait_until

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


@pytest.fixture
def port():
    return launched.free_port()


@pytest.fixture(autouse=True)
def _first_exchange(monkeypatch):
    monkeypatch.setattr(rendezvous, "_exchanged", 0)


class Ranks:
    """Ranks in threads of this process, which share one count of exchanges: each is given its number.

    A rank with a condition has its limit behind it once that holds of it, however long that takes.
    """

    def __init__(self):
        self.found = {}
        self.threads = []

    def start(self, where, timeout=300.0, name=None, number=0, token=None, until=None):
        def end_once_it_holds(rank):
            wait_until(lambda: until(rank))
            rank.end = time.monotonic()

        def run():
            end = time.monotonic() + (timeout if until is None else 300)
            try:
                if where.rank == 0:
                    rank = rendezvous._Server(where, number, ID, end, timeout)
                else:
                    rank = rendezvous._Asker(where, number, end, timeout, token or os.urandom(16))
                if until is not None:
                    threading.Thread(target=end_once_it_holds, args=(rank,), daemon=True).start()
                self.found[name or where.rank] = rank.ask() if where.rank else rank.serve() or ID
            except Exception as error:
                self.found[name or where.rank] = error

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def join(self):
        for each in self.threads:
            each.join(300)
        return self.found


def question(where, token=bytes(16)):
    numbers = (where.size, where.rank, 0)
    job = rendezvous._job(where)
    return rendezvous.QUESTION.pack(rendezvous.HELLO, job, *numbers, token, bytes(16), 77, b"nowhere")


def connect(port):
    deadline = time.monotonic() + 300
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=300)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def claim(where, token):
    """A connection that has proved to be a rank, as far as this process's key goes."""
    connection = connect(where.port)
    connection.sendall(question(where, token))
    answer = connection.recv(rendezvous.CHALLENGE.size, socket.MSG_WAITALL)
    nonce = answer[len(rendezvous.HELLO) :]
    connection.sendall(rendezvous._proof(rendezvous._key(where), b"rank", question(where, token), nonce))
    return connection


@pytest.fixture
def ranks():
    return Ranks()


def test_all_ranks_get_rank_zeros_bytes(ranks, port):
    for rank in (3, 1, 0, 2):
        ranks.start(place(rank, 4, port))
    assert ranks.join() == dict.fromkeys(range(4), ID)


def test_one_rank_alone_asks_nobody():
    assert nccl.exchange(lambda: ID, place(0, 1, 1)) == ID


def test_strangers_are_cut_off_and_change_nothing(ranks, port):
    ranks.start(place(0, 2, port))
    strangers = []
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"", rendezvous.HELLO, b"accelrt", bytes(200)):
        strangers.append(connect(port))
        strangers[-1].sendall(said)
    other_job = question(place(1, 2, port, job="another"))
    with connect(port) as guess:
        guess.sendall(other_job)
        assert guess.recv(1) == b""  # no id for it
    ranks.start(place(1, 2, port))
    assert ranks.join() == {0: ID, 1: ID}
    for each in strangers:
        each.close()


@pytest.mark.parametrize("told", [True, False], ids=["which the ranks are told", "which they find out"])
def test_a_port_that_is_taken_is_passed_over(ranks, monkeypatch, told):
    if not told:
        monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()  # and answers nothing, as torchrun's own server on MASTER_PORT
        port = taken.getsockname()[1]
        for rank in range(2):
            ranks.start(place(rank, 2, port, **({"taken": True} if told else {})))
        assert ranks.join() == {0: ID, 1: ID}


def test_ranks_that_do_not_come_are_named_to_all_that_came(ranks, port):
    ranks.start(place(0, 4, port), timeout=0.7, until=lambda zero: 2 in zero.ranks)
    ranks.start(place(2, 4, port))
    found = ranks.join()
    text = r"ranks 1, 3 of 4 did not come to 127.0.0.1:\d+ within 0.7 s"
    with pytest.raises(TimeoutError, match=text):
        raise found[0]
    with pytest.raises(TimeoutError, match=f"rank 0 gave up: {text}"):
        raise found[2]


def test_a_rank_without_rank_zero_says_where_it_looked(port):
    with pytest.raises(
        TimeoutError, match=r"rank 1 of 2 found no rank 0 at 127.0.0.1, ports \d+ to \d+, within 0.2"
    ):
        nccl.exchange(lambda: ID, place(1, 2, port), timeout=0.2)


def test_ranks_that_disagree_on_their_number_are_told(ranks, port):
    ranks.start(place(0, 2, port), timeout=1.0, until=lambda zero: zero.complaints)
    ranks.start(place(1, 3, port), name="other")
    found = ranks.join()
    with pytest.raises(RuntimeError, match="rank 1 says that there are 3 ranks, rank 0 that there are 2"):
        raise found["other"]
    with pytest.raises(TimeoutError, match="there are 3 ranks"):
        raise found[0]


def test_two_processes_with_one_number_are_told_so_as_is_everybody_else(ranks):
    port, text = launched.free_port(), r"two processes are rank 1: process \d+ on .*, and process \d+ on"
    ranks.start(place(0, 4, port))
    with claim(place(2, 4, port), bytes(16)) as other:
        ranks.start(place(1, 4, port))
        ranks.start(place(1, 4, port), name="twin")
        found = ranks.join()
        kind, size = rendezvous.MESSAGE.unpack(other.recv(rendezvous.MESSAGE.size, socket.MSG_WAITALL))
        assert kind == rendezvous.REFUSAL
        assert b"two processes are rank 1" in other.recv(size, socket.MSG_WAITALL)
    for name in (0, 1, "twin"):
        with pytest.raises(RuntimeError, match=text):
            raise found[name]


def test_a_process_that_asks_again_takes_its_own_place(ranks):
    port, token = launched.free_port(), bytes(16)
    ranks.start(place(0, 3, port))
    with claim(place(1, 3, port), token):  # and says no more
        ranks.start(place(1, 3, port), token=token)
        ranks.start(place(2, 3, port))
        assert ranks.join() == {0: ID, 1: ID, 2: ID}


def test_a_rank_whose_connection_broke_makes_room_for_another_process(ranks, port):
    ranks.start(place(0, 3, port))
    claim(place(1, 3, port), bytes(16)).close()
    ranks.start(place(1, 3, port))
    ranks.start(place(2, 3, port))
    assert ranks.join() == {0: ID, 1: ID, 2: ID}


def test_rank_zero_does_not_go_on_without_a_rank_that_came_and_stopped(ranks, port):
    ranks.start(place(0, 3, port), timeout=1, until=lambda zero: zero.all_came and zero.ranks[2].confirmed)
    with claim(place(1, 3, port), bytes(16)):
        ranks.start(place(2, 3, port))
        found = ranks.join()
    text = r"rank 1 \(process 77 on nowhere\) came to .* and did not answer any more within 1 s"
    for name in (0, 2):
        with pytest.raises(TimeoutError, match=text):
            raise found[name]


@pytest.mark.parametrize("said", [0, 1, 2])
def test_whoever_stops_halfway_without_a_proof_holds_up_nobody(ranks, said, port):
    ranks.start(place(0, 2, port))
    with connect(port) as stranger:
        asked = question(place(1, 2, port))
        stranger.sendall((asked[:30], asked, asked + bytes(31))[said])
        ranks.start(place(1, 2, port))
        assert ranks.join() == {0: ID, 1: ID}


def test_many_strangers_take_no_place_for_good(ranks, monkeypatch, port):
    monkeypatch.setattr(rendezvous, "MOST_STRANGERS", 8)
    ranks.start(place(0, 2, port))
    strangers = [connect(port) for _ in range(20)]
    ranks.start(place(1, 2, port))
    assert ranks.join() == {0: ID, 1: ID}
    for each in strangers:
        each.close()


def test_a_moment_without_descriptors_does_not_end_it(ranks, monkeypatch):
    accept, refused = socket.socket.accept, []

    def refuse_twice(listener):
        if len(refused) < 2:
            refused.append(listener)
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refuse_twice)
    port = launched.free_port()
    ranks.start(place(0, 2, port))
    ranks.start(place(1, 2, port))
    assert ranks.join() == {0: ID, 1: ID}
    assert len(refused) == 2


def test_who_has_no_secret_takes_no_ranks_place(ranks, monkeypatch, port):
    monkeypatch.setenv("ACCELRT_RENDEZVOUS_KEY", "one")
    ranks.start(place(0, 2, port), timeout=1.5, until=lambda zero: zero.complaints)
    connect(port).close()  # it has read its key
    monkeypatch.setenv("ACCELRT_RENDEZVOUS_KEY", "another")
    ranks.start(place(1, 2, port), timeout=0.5, until=lambda asker: asker.mismatch)
    ranks.threads[1].join()
    with pytest.raises(TimeoutError, match="what answers there has another ACCELRT_RENDEZVOUS_KEY"):
        raise ranks.found[1]
    found = ranks.join()
    with pytest.raises(TimeoutError, match=r"ranks 1 of 2 did not come.*as rank 1, has another ACCELRT_REND"):
        raise found[0]


def test_ranks_with_one_secret_meet_beside_one_without(ranks, monkeypatch, port):
    monkeypatch.setenv("ACCELRT_RENDEZVOUS_KEY", "one")
    ranks.start(place(0, 2, port))
    connect(port).close()
    monkeypatch.delenv("ACCELRT_RENDEZVOUS_KEY")
    stranger = claim(place(1, 2, port), bytes(16))
    monkeypatch.setenv("ACCELRT_RENDEZVOUS_KEY", "one")
    ranks.start(place(1, 2, port))
    assert ranks.join() == {0: ID, 1: ID}
    stranger.close()


def exchange_in_process():
    print(nccl.exchange(lambda: ID, timeout=300) == ID, flush=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_and_continued_comes_all_the_same(rank, port):
    processes = [launched.start(exchange_in_process, each, 3, port) for each in range(2)]
    processes[rank].send_signal(signal.SIGSTOP)
    processes.append(launched.start(exchange_in_process, 2, 3, port))
    time.sleep(0.3)  # whatever they have reached by then
    processes[rank].send_signal(signal.SIGCONT)
    for each in processes:
        assert launched.finish(each) == (0, "True\n")


def test_an_early_rank_of_the_next_communicator_waits_for_it(ranks, port):
    ranks.start(place(1, 2, port), name="next", number=1)
    ranks.start(place(0, 2, port))
    ranks.start(place(1, 2, port))
    for each in ranks.threads[1:]:
        each.join(300)
    assert "next" not in ranks.found
    ranks.start(place(0, 2, port), number=1, name="zero again")
    assert ranks.join() == {0: ID, 1: ID, "next": ID, "zero again": ID}


def test_questions_are_packed_alike_on_every_machine():
    assert rendezvous.QUESTION.size == 24 + 16 + 3 * 4 + 16 + 16 + 4 + 64
    assert len(rendezvous.HELLO) == 24
