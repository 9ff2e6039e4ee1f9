"""Owners and openers that stop, or lack descriptors or threads: they hold up nobody else, and waits end."""

import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager

import pytest
from child import in_child
from other_process import Other, drop, keep, make, opened, statistics
from waiting import wait_until

import accelrt.sharing
from accelrt.sharing import consumer, mapping, producer, threads, wire

MIB = 1 << 20
LITTLE = 0.2  # seconds


@contextmanager
def stopped(process):
    """The process, stopped by a signal, as a debugger does it."""
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: b") T " in state_of(process.pid))
    try:
        yield
    finally:
        if process.is_alive():
            os.kill(process.pid, signal.SIGCONT)


def state_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read()


def share_it(kept, name):
    kept["handle"] = kept[name].share()
    return kept["handle"]


def let_handle_go(kept):
    kept.clear()


def new_handle(process):
    process.call(make, "made", MIB // 4, 5)
    return process.call(share_it, "made")


def made_handle(process):
    """A handle of memory of a process; what came with it is dropped."""
    handle = new_handle(process)
    accelrt.ipc_collect()
    return handle


def test_a_stopped_owner_is_waited_for_until_the_limit_and_named(mortal):
    handle = made_handle(mortal)
    with stopped(mortal.process):
        with pytest.raises(
            accelrt.PeerTimeoutError, match=rf"process {mortal.process.pid} \(.*which is stopped\)"
        ):
            handle.open(timeout=LITTLE)
        assert isinstance(accelrt.PeerTimeoutError(""), (TimeoutError, RuntimeError))
        with pytest.raises(accelrt.PeerTimeoutError):  # on connections that it cannot accept
            handle.open(timeout=LITTLE)
    assert (handle.open().numpy() == 5).all()
    accelrt.ipc_collect()
    assert accelrt.sharing.statistics()["opened"] == 0
    mortal.call(let_handle_go)
    wait_until(lambda: mortal.call(statistics)["lent_bytes"] == 0)


def open_late(handle, met):
    try:
        handle.open(timeout=5 * LITTLE)
    except accelrt.PeerTimeoutError as error:
        met.append(error)


def test_a_stopped_owner_holds_up_no_other_one(mortal, other):
    stops = made_handle(mortal)
    first, second = stops.open(), other.call(make, "made", 1000, 7)
    waiting = []
    with stopped(mortal.process):
        opener = threading.Thread(target=open_late, args=(stops, waiting))
        opener.start()
        del second
        wait_until(lambda: other.call(statistics)["lent"] == 0)
        del first
        with pytest.warns(
            RuntimeWarning, match=rf"[12] Buffers of process {mortal.process.pid} .*stopped.* does not"
        ):
            # What the opener began to open counts too, once it has given up.
            assert accelrt.ipc_collect(timeout=2 * LITTLE) in (1, 2)
        opener.join()
        assert waiting
    assert accelrt.ipc_collect() == 0
    other.call(drop, "made")
    wait_until(lambda: other.call(statistics)["lent_bytes"] == 0)


def test_what_a_stopped_owner_was_not_told_is_dropped_when_it_is_killed(mortal):
    array = mortal.call(make, "made", 1000, 7)
    with stopped(mortal.process):
        del array
        with pytest.warns(RuntimeWarning, match="not given back"):
            accelrt.ipc_collect(timeout=LITTLE)
        mortal.kill()
    assert accelrt.ipc_collect() == 0


def test_a_stopped_opener_holds_up_no_other_one(mortal, other):
    array = accelrt.full((MIB,), 7, "int8")
    mortal.call(keep, "array", array)
    with array.share() as handle, stopped(mortal.process):
        assert (other.call(opened, handle) == 7).all()
        wait_until(lambda: accelrt.sharing.statistics()["lent"] == 1)
    mortal.call(drop, "array")
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)


def lenders():
    return [thread.name for thread in threading.enumerate()].count("accelrt-sharing-lender")


def test_who_connects_and_says_nothing_costs_a_thread_until_it_goes(mortal):
    handle = accelrt.full((MIB,), 7, "int8").share()
    before = lenders()
    silent = mapping.connect(handle._place.name, mapping.FOREVER)
    assert silent.receive()[0]  # the challenge
    assert (mortal.call(opened, handle) == 7).all()
    silent.close()
    mortal.kill()
    wait_until(lambda: lenders() <= before)  # some of those that were there may have ended too


def test_memory_that_is_not_given_back_holds_its_opener_back(other, monkeypatch):
    array = accelrt.full((MIB,), 7, "int8")
    handle = array.share()
    late, asked, why = other.call(open_while_held, handle)
    assert late == asked == 64
    assert "that were dropped here are not given back, since this process's own work" in why
    assert accelrt.sharing.statistics()["lent"] <= 65
    other.call(release)
    assert (other.call(opened, handle) == 7).all()
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)
    handle.close()


def open_while_held(kept, handle):
    """Opens until it is held back, while work keeps what was opened before from being given back."""
    kept["gate"] = threading.Event()
    stream = accelrt.Stream()
    stream.launch_host_func(kept["gate"].wait)
    number = 0
    with accelrt.stream(stream):
        while True:
            try:
                memory = handle.open(timeout=LITTLE) if number >= 64 else handle.open()
            except accelrt.PeerTimeoutError as error:
                late = consumer._owners[handle._place.name].tally.late - 1  # less the one that was refused
                return late, number, str(error)
            memory.fill_(7)
            del memory
            number += 1


def release(kept):
    kept.pop("gate").set()
    assert accelrt.ipc_collect() == 0


def test_many_leases_are_given_back_by_few_messages(other):
    with accelrt.full((8,), 7, "int8").share() as handle:
        assert other.call(count_messages, handle) < 50  # leases
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)


def count_messages(kept, handle):
    stream, gate, sent, send = accelrt.Stream(), threading.Event(), [], wire.send
    stream.launch_host_func(gate.wait)
    with accelrt.stream(stream):
        for _ in range(50):
            handle.open().fill_(7)
    wire.send = lambda connection, message, *rest: (sent.append(message), send(connection, message, *rest))
    try:
        gate.set()
        accelrt.ipc_collect()
    finally:
        wire.send = send
    assert sum(len(message["done"]) for message in sent if message.get("do") == "end") == 50
    return len(sent)


# --- the listener ------------------------------------------------------------------------------------


def threads_named(name):
    return [thread.name for thread in threading.enumerate()].count(name)


def without_descriptors():
    handle = accelrt.full((MIB,), 7, "int8").share()
    other = Other()
    assert (other.call(opened, handle) == 7).all()
    other.stop()
    # Else descriptors of its connection come free later, and the second one's is accepted.
    wait_until(lambda: not producer._borrowers and threads_named("accelrt-sharing-lender") == 0)
    second = Other()
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    files = []
    with pytest.raises(OSError, match="Too many open files"):
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))
    second.tell(opened, handle)
    wait_until(lambda: threads._reported)  # the listener met it
    for file in files:
        os.close(file)
    assert (second.answer() == 7).all()
    assert threads_named("accelrt-sharing-listener") == 1
    second.stop()
    print("done")


def test_an_owner_without_descriptors_goes_on_when_it_has_some():
    told = in_child(without_descriptors)
    assert (
        told.count("RuntimeWarning: accelrt.sharing goes on, but a process that opens memory has to wait")
        == 1
    )
    assert told.endswith("done\n")


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO]
)
def test_the_listener_outlives_a_refused_connection(number, other, monkeypatch, recwarn):
    failing = FailingListener(producer.start(), number)
    monkeypatch.setattr(producer._offer, "listener", failing)
    with accelrt.full((MIB,), 7, "int8").share() as handle:
        other.call(forget_owners)
        assert (other.call(opened, handle) == 7).all()
    assert failing.left == 0


def forget_owners(kept):
    """So that the next exchange takes a new connection."""
    accelrt.ipc_collect()
    for owner in consumer._owners.values():
        owner.idle.clear()


class FailingListener:
    """Refuses twice, and then accepts."""

    def __init__(self, name, number):
        self.listener, self.number, self.left = producer._offer.listener, number, 2

    def fileno(self):
        return self.listener.fileno()

    def accept(self):
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        return self.listener.accept()


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), ZeroDivisionError()]
)
def test_the_listener_outlives_a_thread_that_cannot_start(error, other, monkeypatch, recwarn):
    begin, failures = producer.Lender.begin, [error, error]

    def begin_late(lender):
        if failures:
            raise failures.pop()
        begin(lender)

    monkeypatch.setattr(producer.Lender, "begin", begin_late)
    producer.start()
    with accelrt.full((MIB,), 7, "int8").share() as handle:
        other.call(forget_owners)
        assert (other.call(opened, handle) == 7).all()
    assert not failures


def test_a_share_whose_thread_cannot_start_leaves_nothing(monkeypatch):
    monkeypatch.setattr(producer, "_offer", None)
    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
    array = accelrt.full((MIB,), 7, "int8")
    before = accelrt.sharing.statistics()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        array.share()
    assert accelrt.sharing.statistics() == before


def refuse_to_start(thread):
    raise RuntimeError("can't start new thread")


def test_a_system_without_pidfds_still_sees_a_process_end(monkeypatch):
    monkeypatch.setattr(producer, "open_life", lambda connection, pid: None)
    monkeypatch.setattr(producer, "LOOK_EVERY", 0.01)
    opener = Other()
    array = accelrt.full((MIB,), 7, "int8")
    opener.call(keep, "array", array)
    opener.call(close_connections)
    (borrower,) = (each for each in producer._borrowers.values() if each.pid == opener.process.pid)
    wait_until(lambda: not borrower.connections)
    assert accelrt.sharing.statistics()["lent"] == 1  # it lives, and has it
    opener.kill()
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)


def close_connections(kept):
    for owner in consumer._owners.values():
        owner.idle.clear()


# --- names that somebody else has --------------------------------------------------------------------


def bind(name):
    """Another process's hand on an owner's name: it answers garbage."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{name}")
    listener.listen()
    print("bound", flush=True)
    for _ in range(100):
        taken, _ = listener.accept()
        taken.send(b"garbage")
        taken.close()


@contextmanager
def claimed(name):
    code = f"from test_stopped_processes import bind; bind({name!r})"
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert process.stdout.readline() == "bound\n"
    yield
    process.kill()
    process.communicate()


def test_a_dead_owners_name_that_another_process_took(mortal, other):
    handle = made_handle(mortal)
    memory, kept = handle.open(), other.call(make, "made", 1000, 7)
    mortal.kill()
    name = handle._place.name
    with claimed(name):
        for connection in consumer._owners[name].idle:
            connection.close()
        consumer._owners[name].idle.clear()
        with pytest.raises(RuntimeError, match=r"that process is gone"):
            handle.open()
        del memory, kept
        gc.collect()
        assert accelrt.ipc_collect() == 0
        wait_until(lambda: other.call(statistics)["lent"] == 0)
    other.call(drop, "made")


def test_garbage_in_place_of_an_unknown_owner_is_an_error(mortal):
    handle = made_handle(mortal)
    mortal.kill()
    wait_until(lambda: accelrt.ipc_collect() == 0)
    consumer._owners.pop(handle._place.name, None)
    with claimed(handle._place.name), pytest.raises(RuntimeError, match=r"broke off \(A\w+Error: .*garbage"):
        handle.open()
    consumer._owners.pop(handle._place.name, None)


class AnotherUser:
    peer = (4711, os.geteuid() + 1)


def test_another_users_process_is_not_answered(mortal, monkeypatch):
    handle, check = made_handle(mortal), wire.check_user
    consumer._owners.pop(handle._place.name)
    monkeypatch.setattr(wire, "check_user", lambda connection: check(AnotherUser))
    with pytest.raises(RuntimeError, match=r"gone, .*process 4711 is of user \d+, and this one of user \d+"):
        handle.open()
    consumer._owners.pop(handle._place.name)


# --- the threads -------------------------------------------------------------------------------------


def test_a_thread_outlives_every_exception_and_tells_of_it_once(monkeypatch):
    steps, done = (
        [ZeroDivisionError(), MemoryError(), accelrt.CudaError(4), KeyboardInterrupt(), ZeroDivisionError()],
        threading.Event(),
    )

    def step():
        if steps:
            raise steps.pop(0)
        done.set()
        return False

    told = []
    monkeypatch.setattr(threads.warnings, "warn", lambda text, *rest, **others: told.append(text))
    monkeypatch.setattr(threads, "_reported", set())
    threads.Service("accelrt-sharing-test", "nothing is done", step).ensure()
    assert done.wait(300)
    assert [text.split(": ")[1] for text in told] == ["ZeroDivisionError", "MemoryError", "KeyboardInterrupt"]


def test_the_limit_is_a_setting(mortal, monkeypatch):
    handle = made_handle(mortal)
    monkeypatch.setenv("ACCELRT_SHARING_TIMEOUT", "0.2")
    with stopped(mortal.process), pytest.raises(accelrt.PeerTimeoutError, match=r"within 0\.2 s"):
        handle.open()
    for timeout, error in ((0, ValueError), (-1.0, ValueError), ("3", TypeError), (True, TypeError)):
        with pytest.raises(error, match="timeout is"):
            handle.open(timeout=timeout)
        with pytest.raises(error, match="timeout is"):
            accelrt.ipc_collect(timeout)
    assert (handle.open(timeout=float("inf")).numpy() == 5).all()
    accelrt.ipc_collect()
    mortal.call(let_handle_go)


def test_nothing_is_warned_of_where_all_goes_well(other):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = other.call(make, "made", 1000, 7)
        del array
        assert accelrt.ipc_collect() == 0
    other.call(drop, "made")
    wait_until(lambda: other.call(statistics)["lent_bytes"] == 0)
