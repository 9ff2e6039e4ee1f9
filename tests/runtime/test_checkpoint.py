"""Process checkpoints: with a stand-in for cuda.bindings.driver, on the host device, and on a GPU."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings

import numpy as np
import pytest
from beside import on_a_thread
from child import in_own_process
from cli_command import accelrt as command
from every_bytecode import interrupt_everywhere
from waiting import wait_until

import accelrt
from accelrt import checkpoint, checkpoint_listener, testing
from accelrt.runtime import cuda_bindings
from accelrt.tools.cli.commands import checkpoint as checkpoint_command

MIB = 1 << 20
RUNNING, LOCKED, SAVED = 0, 1, 2
OLD, NEW = uuid.UUID(int=7), uuid.UUID(int=8)


class StandIn:
    """The functions of the driver, one process that uses CUDA, and the real structs of cuda.bindings."""

    def __init__(self):
        real = pytest.importorskip("cuda.bindings.driver")
        for name in ("CUcheckpointLockArgs", "CUcheckpointRestoreArgs", "CUcheckpointGpuPair", "CUuuid"):
            setattr(self, name, getattr(real, name))
        self.process, self.calls, self.refuse, self.restored = RUNNING, [], {}, None

    def step(self, name, before, after):
        self.calls.append(name)
        if name in self.refuse:
            return (self.refuse[name],)
        if self.process != before:
            return (401,)
        self.process = after
        return (0,)

    def cuCheckpointProcessGetState(self, pid):
        return 0, self.process

    def cuCheckpointProcessLock(self, pid, arguments):
        self.timeout = None if arguments is None else arguments.timeoutMs
        return self.step("lock", RUNNING, LOCKED)

    def cuCheckpointProcessCheckpoint(self, pid, arguments):
        assert arguments is None
        return self.step("checkpoint", LOCKED, SAVED)

    def cuCheckpointProcessRestore(self, pid, arguments):
        if arguments is not None:
            pairs = arguments.gpuPairs
            assert len(pairs) == arguments.gpuPairsCount
            self.restored = [(bytes(pair.oldUuid.bytes), bytes(pair.newUuid.bytes)) for pair in pairs]
        return self.step("restore", SAVED, LOCKED)

    def cuCheckpointProcessUnlock(self, pid, arguments):
        assert arguments is None
        return self.step("unlock", LOCKED, RUNNING)


@pytest.fixture
def stand_in(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(cuda_bindings, "open_bindings", lambda *_: made)
    return made


@pytest.fixture
def pid():
    """A process that runs until the test is over."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def test_a_process_is_suspended_and_resumed(stand_in, pid):
    assert checkpoint.state(pid) == "running"
    checkpoint.suspend(pid, timeout=2.5)
    assert (stand_in.timeout, checkpoint.state(pid)) == (2500, "checkpointed")
    checkpoint.resume(pid)
    assert (checkpoint.state(pid), stand_in.restored) == ("running", None)
    assert stand_in.calls == ["lock", "checkpoint", "restore", "unlock"]
    checkpoint.suspend(pid)
    assert stand_in.timeout is None


def test_each_step_is_a_call(stand_in, pid):
    checkpoint.lock(pid)
    assert checkpoint.state(pid) == "locked"
    checkpoint.checkpoint(pid)
    checkpoint.restore(pid)
    checkpoint.unlock(pid)
    with pytest.raises(
        accelrt.CudaError, match=r"ILLEGAL_STATE[\s\S]*lock, checkpoint, restore, unlock follow"
    ):
        checkpoint.checkpoint(pid)


@pytest.mark.host  # it takes two devices
def test_it_comes_back_on_other_devices(stand_in, pid):
    checkpoint.suspend(pid)
    checkpoint.resume(pid, {f"GPU-{OLD}": f"gpu-{NEW.hex}", 0: 1})
    mine = [accelrt.get_device_properties(ordinal).uuid.bytes for ordinal in (0, 1)]
    assert stand_in.restored == [(OLD.bytes, NEW.bytes), tuple(mine)]


def test_a_process_that_cannot_be_saved_runs_on(stand_in, pid):
    stand_in.refuse["checkpoint"] = 801
    with pytest.raises(accelrt.NotSupportedError, match="this driver cannot checkpoint it"):
        checkpoint.suspend(pid)
    assert (stand_in.process, stand_in.calls) == (RUNNING, ["lock", "checkpoint", "unlock"])
    stand_in.refuse["lock"] = 600
    with pytest.raises(accelrt.CudaError, match="did not come to rest in time, and runs on"):
        checkpoint.suspend(pid, 0.1)
    assert stand_in.process == RUNNING


def test_a_process_that_others_locked_stays_so(stand_in, pid):
    checkpoint.lock(pid)
    stand_in.refuse["checkpoint"] = 2
    with pytest.raises(accelrt.CudaError):
        checkpoint.suspend(pid)
    assert checkpoint.state(pid) == "locked"
    checkpoint.resume(pid)
    assert checkpoint.state(pid) == "running"


def test_a_lock_that_others_take_meanwhile_stays(stand_in, pid):
    def locked_by_others(*_):
        stand_in.process = LOCKED
        return (401,)

    stand_in.cuCheckpointProcessLock = locked_by_others
    with pytest.raises(accelrt.CudaError, match="ILLEGAL_STATE"):
        checkpoint.suspend(pid)
    assert (stand_in.process, stand_in.calls) == (LOCKED, [])


def test_what_could_not_be_restored_can_be_tried_again(stand_in, pid):
    checkpoint.suspend(pid)
    stand_in.refuse["restore"] = 2
    with pytest.raises(accelrt.CudaError):
        checkpoint.resume(pid)
    assert checkpoint.state(pid) == "checkpointed"
    del stand_in.refuse["restore"]
    stand_in.refuse["unlock"] = 999
    with pytest.raises(accelrt.CudaError):
        checkpoint.resume(pid)
    del stand_in.refuse["unlock"]
    checkpoint.resume(pid)
    assert checkpoint.state(pid) == "running"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda pid: checkpoint.state("7"), TypeError, "pid is '7' of type str"),
        (lambda pid: checkpoint.state(0), ValueError, "pid is 0; there is no such process"),
        (lambda pid: checkpoint.lock(pid, 0), ValueError, "timeout is 0; it is above 0"),
        (lambda pid: checkpoint.lock(pid, float("nan")), ValueError, "timeout is nan"),
        (lambda pid: checkpoint.lock(pid, "1"), TypeError, "timeout is '1' of type str; pass seconds"),
        (lambda pid: checkpoint.restore(pid, {}), ValueError, "devices is empty"),
        (lambda pid: checkpoint.restore(pid, [(0, 1)]), TypeError, "pass a dict, from old to new"),
        (lambda pid: checkpoint.restore(pid, {0: 99}), ValueError, "a new device is 99; this process has"),
        (
            lambda pid: checkpoint.restore(pid, {"MIG-1": 0}),
            ValueError,
            "an old device is 'MIG-1'; pass a GPU's",
        ),
        (lambda pid: checkpoint.restore(pid, {0: 1.5}), TypeError, "a new device is 1.5 of type float"),
        (
            lambda pid: checkpoint.restore(pid, {f"GPU-{OLD}": 0, 0: 0}),
            ValueError,
            "names one new device twice",
        ),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_called(stand_in, pid, call, error, text):
    with pytest.raises(error, match=text):
        call(pid)
    assert stand_in.calls == []


def test_a_process_that_has_ended_is_told(stand_in):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ValueError, match="there is no such process, or it has ended"):
        checkpoint.suspend(process.pid)


def test_an_old_driver_is_told(stand_in, pid):
    def missing(*_):
        raise RuntimeError('Function "cuCheckpointProcessGetState" not found')

    stand_in.cuCheckpointProcessGetState = missing
    with pytest.raises(accelrt.NotSupportedError, match=r"need a driver and cuda-bindings of CUDA 12\.8"):
        checkpoint.state(pid)


@pytest.mark.host
def test_the_host_device_needs_none(pid):
    with pytest.raises(accelrt.NotSupportedError, match="the host device's memory is memory of the process"):
        checkpoint.suspend(pid)


def reserved():
    return accelrt.memory_reserved(0)


def test_a_prepared_process_holds_little_and_has_all_again():
    with accelrt.Buffer(MIB) as kept_outside:
        activations, weights = accelrt.MemPool(), accelrt.MemPool()
        with accelrt.use_mem_pool(activations):
            lost = accelrt.Buffer(8 * MIB)
        with accelrt.use_mem_pool(weights):
            kept = accelrt.Buffer(4 * MIB)
        kept.fill(7)
        accelrt.Buffer(16 * MIB).free()
        before = reserved()
        with checkpoint.prepared(discard=[activations], keep=[weights]):
            assert reserved() <= before - 28 * MIB
            assert activations.is_asleep()
            assert weights.is_asleep()
            kept_outside.fill(1)
        assert not activations.is_asleep()
        contents = np.empty(4 * MIB, np.uint8)
        with kept, lost:
            lost.fill(3)
            kept.copy_to(contents)
        assert set(contents) == {7}


def test_a_pool_that_cannot_sleep_leaves_the_others_awake():
    one, other = accelrt.MemPool(), accelrt.MemPool()
    with accelrt.use_mem_pool(one):
        buffer = accelrt.Buffer(MIB)
    with accelrt.use_mem_pool(other):
        rest = accelrt.Buffer(MIB)
    other.sleep()
    with pytest.raises(RuntimeError), checkpoint.prepared(keep=[one, other]):
        raise AssertionError
    assert not one.is_asleep()
    assert other.is_asleep()
    other.wake()
    buffer.free()
    rest.free()


def test_an_error_inside_wakes_them_too():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(MIB)
    with pytest.raises(KeyError), checkpoint.prepared(discard=[pool]):
        assert pool.is_asleep()
        raise KeyError
    assert not pool.is_asleep()
    buffer.free()


LISTENER = """
import sys
import accelrt
pool, weights = accelrt.MemPool(), accelrt.MemPool()
with accelrt.use_mem_pool(pool):
    lost = accelrt.Buffer(8 << 20)
with accelrt.use_mem_pool(weights):
    kept = accelrt.Buffer(4 << 20)
kept.fill(9)
accelrt.checkpoint.listen(discard=[pool], keep=[weights])
print("ready", flush=True)
for line in sys.stdin:
    if line == "capture\\n":
        graph = accelrt.CUDAGraph()
        context = accelrt.graph(graph)
        context.__enter__()
    if line == "end\\n":
        context.__exit__(None, None, None)
    if line == "contents\\n":
        out = bytearray(4 << 20)
        kept.copy_to(out)
        print(set(out), flush=True)
    else:
        print(pool.is_asleep(), weights.is_asleep(), flush=True)
"""


@pytest.fixture
def listener():
    environment = os.environ | {"ACCELRT_DRIVER": "host"}
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def say(word="asleep"):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    assert process.stdout.readline() == "ready\n"
    say.pid = process.pid
    yield say
    process.communicate()


@pytest.mark.host
def test_a_process_that_listens_lets_its_pools_sleep_while_it_is_suspended(stand_in, listener):
    assert listener() == "False False"
    checkpoint.suspend(listener.pid)
    assert listener() == "True True"
    checkpoint.resume(listener.pid)
    assert listener() == "False False"
    assert listener("contents") == "{9}"
    checkpoint.suspend(listener.pid, prepare=False)
    assert listener() == "False False"
    checkpoint.resume(listener.pid)


@pytest.mark.host
def test_a_process_that_could_not_be_suspended_is_awake_again(stand_in, listener):
    stand_in.refuse["checkpoint"] = 2
    with pytest.raises(accelrt.CudaError):
        checkpoint.suspend(listener.pid)
    assert listener() == "False False"
    assert stand_in.process == RUNNING


@pytest.mark.host
def test_a_process_that_cannot_prepare_is_told_of_and_runs_on(stand_in, listener):
    assert listener("capture") == "False False"
    with pytest.raises(RuntimeError, match=r"was told to prepare, which failed there: \w+"):
        checkpoint.suspend(listener.pid)
    assert (stand_in.calls, stand_in.process) == ([], RUNNING)
    assert listener("end") == "False False"
    checkpoint.suspend(listener.pid)
    assert listener() == "True True"


def wait_until_awake(listener):
    wait_until(lambda: listener() == "False False", "the process does not wake")


@pytest.mark.host
def test_a_process_wakes_whose_suspender_dies_before_it_has_suspended_it(listener):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.connect(checkpoint_listener.address_of(listener.pid))
        killed.sendall(b"prepare")
        assert killed.recv(100) == b"ok"
        assert listener() == "True True"
    wait_until_awake(listener)


@pytest.mark.host
def test_a_process_that_another_prepares_too_sleeps_until_neither_does(stand_in, listener):
    with pytest.raises(KeyError), checkpoint_listener.preparation(listener.pid, 300):
        with pytest.raises(KeyError), checkpoint_listener.preparation(listener.pid, 300):
            raise KeyError
        checkpoint_listener.tell(listener.pid, "prepare", 300)
        assert listener() == "True True"
        raise KeyError
    wait_until_awake(listener)


@pytest.mark.host
def test_a_process_that_was_stopped_and_did_not_prepare_in_time_is_awake_once_it_goes_on(
    stand_in, listener, monkeypatch
):
    monkeypatch.setattr(checkpoint, "PREPARATION", 0.1)
    os.kill(listener.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="was told to prepare, and did not answer"):
        checkpoint.suspend(listener.pid)
    os.kill(listener.pid, signal.SIGCONT)
    monkeypatch.undo()
    assert stand_in.calls == []
    assert checkpoint_listener.tell(listener.pid, "wake", 300)  # behind that
    wait_until_awake(listener)


@pytest.mark.host
def test_waking_can_be_tried_again(stand_in, listener):
    def interrupted(pid, arguments):
        StandIn.cuCheckpointProcessUnlock(stand_in, pid, arguments)
        raise KeyboardInterrupt

    checkpoint.suspend(listener.pid)
    stand_in.cuCheckpointProcessUnlock = interrupted
    with pytest.raises(KeyboardInterrupt):
        checkpoint.resume(listener.pid)
    assert (stand_in.process, listener()) == (RUNNING, "True True")
    checkpoint.resume(listener.pid)
    assert listener() == "False False"
    with pytest.raises(accelrt.CudaError, match="ILLEGAL_STATE"):
        checkpoint.resume(listener.pid, {0: 0})  # which waking alone does not do


def suspend_or_be_refused(pid):
    with contextlib.suppress(accelrt.CudaError):
        checkpoint.suspend(pid)


@pytest.mark.host
@pytest.mark.parametrize("refusal", [{}, {"checkpoint": 2}])
def test_an_interruption_leaves_no_process_locked_or_asleep(stand_in, listener, refusal):
    stand_in.refuse.update(refusal)

    def check(_):
        assert stand_in.process in (RUNNING, SAVED)
        if stand_in.process == SAVED:
            checkpoint.resume(listener.pid)
        wait_until_awake(listener)

    reached, escaped = interrupt_everywhere(
        lambda _: suspend_or_be_refused(listener.pid), [checkpoint, checkpoint_listener], check=check
    )
    assert escaped == reached > 50


def test_this_process_listens_as_long_as_it_is_to(stand_in):
    assert not checkpoint_listener.tell(os.getpid(), "wake", 300)
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(MIB)
    checkpoint.listen(keep=[pool])
    checkpoint.suspend(os.getpid())
    assert pool.is_asleep()
    checkpoint.stop_listening()  # which wakes it
    assert not pool.is_asleep()
    checkpoint.resume(os.getpid())
    assert not checkpoint_listener.tell(os.getpid(), "wake", 300)
    checkpoint.listen()
    with pytest.raises(RuntimeError, match="no word of a checkpoint's"):
        checkpoint_listener.tell(os.getpid(), "sleep", 5)
    checkpoint.stop_listening()
    buffer.free()


@pytest.mark.host
@in_own_process
def test_pools_that_did_not_wake_are_woken_once_there_is_room():
    """The word is said again, by resume() say, or before the process is prepared anew."""
    testing.use_device()
    pools, buffers = [accelrt.MemPool() for _ in range(3)], []
    for pool in pools:
        with accelrt.use_mem_pool(pool):
            buffers.append(accelrt.Buffer(MIB))
    buffers[2].fill(9)
    checkpoint.listen(discard=pools[:2], keep=pools[2:])

    def prepare():
        with checkpoint_listener.preparation(os.getpid(), 300):
            assert [pool.is_asleep() for pool in pools] == [True] * 3

    def wake():
        checkpoint_listener.tell(os.getpid(), "wake", 300)
        assert [pool.is_asleep() for pool in pools] == [False] * 3

    for again in (wake, prepare):
        prepare()
        with testing.failing(code=2, mode="onward", rows=["physical_create"]):
            for _ in range(2):
                with pytest.raises(RuntimeError, match="out of memory"):
                    wake()
        pools[1].wake()
        with pytest.raises(RuntimeError, match="does not sleep"):  # which is told once
            again()
        assert [pool.is_asleep() for pool in pools] == [False] * 3
        prepare()
        wake()
    checkpoint.stop_listening()


@pytest.mark.host
@in_own_process
def test_a_listener_outlives_what_goes_wrong_with_a_client():
    """No descriptor left for a connection, and a client that goes, where warnings are errors."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    checkpoint.listen()
    place, files = checkpoint_listener.address_of(os.getpid()), []
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2)]
    with contextlib.suppress(OSError):
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))
    clients[0].connect(place)
    time.sleep(3 * checkpoint_listener.PAUSE)  # it is refused a descriptor meanwhile
    for file in files:
        os.close(file)
    clients[0].sendall(b"wake")
    assert clients[0].recv(100) == b"ok"
    clients[1].connect(place)
    clients[1].close()
    assert checkpoint_listener.tell(os.getpid(), "wake", 300)
    checkpoint.stop_listening()


def test_what_is_just_put_to_sleep_wakes_where_listening_ends(monkeypatch):
    begun, gate, awake = threading.Event(), threading.Event(), []

    @contextlib.contextmanager
    def prepared():
        begun.set()
        gate.wait(300)
        yield
        awake.append(True)

    checkpoint_listener.start(prepared)
    teller = threading.Thread(target=checkpoint_listener.tell, args=(os.getpid(), "prepare", 300))
    teller.start()
    begun.wait(300)
    monkeypatch.setattr(checkpoint_listener, "ANSWER_SECONDS", 0.05)  # from here on: the word was said
    stopper = threading.Thread(target=checkpoint.stop_listening)
    stopper.start()
    stopper.join(0.3)
    gate.set()
    stopper.join()
    teller.join()
    assert awake == [True]


@pytest.mark.parametrize("step", ["__init__", "begin"])
def test_of_two_threads_that_listen_at_once_one_does_and_can_be_ended(monkeypatch, step):
    inside = getattr(checkpoint_listener.Listener, step)
    first = []

    def with_another_before(self, *given):
        if not first:
            first.append(self)
            on_a_thread(checkpoint.listen)
        inside(self, *given)

    monkeypatch.setattr(checkpoint_listener.Listener, step, with_another_before)
    checkpoint.listen()
    wait_until(lambda: [each.name for each in threading.enumerate()].count("accelrt-checkpoint") == 1)
    assert checkpoint_listener.tell(os.getpid(), "wake", 300)
    checkpoint.stop_listening()
    assert not checkpoint_listener.tell(os.getpid(), "wake", 300)


def test_a_process_that_takes_anothers_name_is_not_believed(pid):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(checkpoint_listener.address_of(pid))
        taken.listen()
        assert not checkpoint_listener.tell(pid, "prepare", 300)


@pytest.mark.parametrize("others_wait", [False, True])
def test_one_that_does_not_answer_is_waited_for_no_longer_than_the_limit(others_wait):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent, contextlib.ExitStack() as clients:
        silent.bind(checkpoint_listener.address_of(os.getpid()))
        silent.listen(0)
        with contextlib.suppress(BlockingIOError):  # as many as there is room for
            while others_wait:
                client = clients.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.setblocking(False)
                client.connect(checkpoint_listener.address_of(os.getpid()))
        with pytest.raises(TimeoutError, match="was told to prepare, and did not answer within"):
            checkpoint_listener.tell(os.getpid(), "prepare", 0.05)


def test_one_that_breaks_the_connection_off_is_told_of():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as breaking:
        breaking.bind(checkpoint_listener.address_of(os.getpid()))
        breaking.listen()

        def break_off():
            connection, _ = breaking.accept()
            while not connection.recv(1, socket.MSG_PEEK):
                pass
            connection.close()  # with a word unread: the other side finds the connection reset

        thread = threading.Thread(target=break_off)
        thread.start()
        with pytest.raises(
            RuntimeError, match="was told to wake, which failed there: it broke the connection"
        ):
            checkpoint_listener.tell(os.getpid(), "wake", 300)
        thread.join()


def test_a_name_that_a_forked_child_has_for_a_moment_is_waited_for(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as childs:
        childs.bind(checkpoint_listener.address_of(os.getpid()))
        monkeypatch.setattr(checkpoint_listener, "NAME_SECONDS", 300)
        closing = threading.Timer(0.1, childs.close)
        closing.start()
        checkpoint.listen()
        closing.join()
    assert checkpoint_listener.tell(os.getpid(), "wake", 300)
    checkpoint.stop_listening()


# --- the command ------------------------------------------------------------------------------------------


def run(pid, **given):
    defaults = {"restore": False, "asks": False, "devices": None, "timeout": None, "as_json": False}
    return checkpoint_command.run(pid, **defaults | given)


@pytest.mark.host  # it takes two devices
def test_the_command_suspends_asks_and_resumes(stand_in, pid, capsys):
    assert run(pid, timeout=3.0) == 0
    assert run(pid, asks=True) == 0
    assert run(pid, restore=True, devices=[(0, 1), (1, 0)], as_json=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"process {pid} is checkpointed; it was running"
    assert lines[1] == f"process {pid} is checkpointed"
    assert json.loads(lines[2]) == {"schema": 1, "pid": pid, "before": "checkpointed", "state": "running"}
    assert len(stand_in.restored) == 2


@pytest.mark.own_process
@pytest.mark.host
def test_the_command_says_why_it_cannot():
    done = command("checkpoint", str(os.getpid()), ACCELRT_DRIVER="host")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the host device's memory is memory of the process" in done.stderr
    assert command("checkpoint", "0", ACCELRT_DRIVER="host").returncode == 2
    for words, text in (
        (("1", "--to", "0"), "0 is not OLD=NEW"),
        (("1", "--to", "0=1"), "pass --restore with it"),
        (("1", "--restore", "--timeout", "1"), "--timeout is for locking"),
        (("1", "--restore", "--to", "0=1", "--to", "0=2"), "names an old device twice"),
        (("1", "--restore", "--state"), "not allowed with argument"),
        (("1", "--timeout", "0"), "above 0"),
    ):
        done = command("checkpoint", *words, ACCELRT_DRIVER="host")
        assert (done.returncode, text in done.stderr) == (2, True), (words, done.stderr)


# --- on a GPU ---------------------------------------------------------------------------------------------

WORKER = """
import sys
import accelrt
buffer = accelrt.Buffer(64 << 20)
buffer.fill(5)
accelrt.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    out = bytearray(64 << 20)
    buffer.copy_to(out)
    print(set(out), flush=True)
"""


def worker():
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def suspended(process):
    try:
        checkpoint.suspend(process.pid, 30)
    except accelrt.NotSupportedError as error:
        process.communicate("")
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [None, "swapped"])
def test_a_process_on_a_gpu_lets_go_of_it_and_has_it_back(devices):
    count = accelrt.device_count()
    if devices and count < 2:
        pytest.skip("one GPU")
    process = worker()
    held = accelrt.mem_get_info(0)[0]
    suspended(process)
    assert checkpoint.state(process.pid) == "checkpointed"
    # Other processes, such as those of tests beside this one, take and give memory of the device meanwhile.
    wait_until(lambda: accelrt.mem_get_info(0)[0] >= held + (64 << 20), "the device has no more memory")
    # Each device of the machine that is visible: the process may have made contexts of them all.
    moved = {old: (old + 1) % count for old in range(count)} if devices else None
    checkpoint.resume(process.pid, moved)
    assert checkpoint.state(process.pid) == "running"
    out, _ = process.communicate("go\n")
    assert (out, process.returncode) == ("{5}\n", 0)


@pytest.mark.gpu
def test_asking_on_another_thread_works_too():
    process = worker()
    assert on_a_thread(lambda: checkpoint.state(process.pid)) == "running"
    process.communicate("")
