"""Initialisation at first use, queued calls, and forks."""

import sys
import threading

import pytest
from beside import Caller, Crowd, on_a_thread, on_threads, until_over
from child import in_fork, in_own_process, run_code
from waiting import wait_until_asleep

import accelrt
from accelrt.core import names

pytestmark = pytest.mark.own_process


@in_own_process(printing="1 True\n")
def test_first_use_initialises_once_from_many_threads():
    ran, barrier = [], threading.Barrier(8)
    accelrt.lazy_call(lambda: ran.append(1))

    def use(_):
        barrier.wait()
        accelrt.current_stream()
        accelrt.init()

    on_threads(use, range(8))
    print(len(ran), accelrt.is_initialized())


@in_own_process(printing="before\ninside 2\nafter\n", ACCELRT_HOST_DEVICES="2")
def test_a_queued_call_may_use_the_device():
    accelrt.lazy_call(lambda: print("inside", accelrt.device_count()))
    print("before")
    accelrt.init()
    accelrt.lazy_call(lambda: print("after"))


@in_own_process
def test_a_queued_call_that_fails_names_who_queued_it_and_can_be_tried_again():
    answers = iter([ValueError("boom")])

    def call():
        for error in answers:
            raise error

    def guilty():
        accelrt.lazy_call(call)

    guilty()
    with pytest.raises(accelrt.DeferredCudaCallError, match=r"(?s)boom.*guilty|guilty.*boom") as caught:
        accelrt.init()
    assert type(caught.value.__cause__) is ValueError
    accelrt.init()
    assert accelrt.is_initialized()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ACCELRT_DRIVER", "gpu"),
        ("ACCELRT_HOST_DEVICES", "many"),
        ("ACCELRT_HOST_MEMORY", "1 elephant"),
        ("ACCELRT_HOST_DELAY_US", "-1"),
    ],
)
def test_a_malformed_setting_is_named_with_its_value(setting, value):
    out = run_code(
        "import accelrt\ntry:\n    accelrt.init()\nexcept ValueError as error:\n    print(error)",
        **{"ACCELRT_DRIVER": "host", setting: value},
    )
    assert setting in out
    assert value in out


@in_own_process
def test_asking_for_another_driver_after_init_is_refused():
    accelrt.init()
    with pytest.raises(RuntimeError, match="already runs on"):
        accelrt.init(driver="cuda" if accelrt.device(0).type == "host" else "host")


FORK = (
    "import accelrt, os\n"
    "{before}\n"
    "pid = os.fork()\n"
    "if pid == 0:\n"
    "    try:\n"
    "        {inside}\n"
    "    except BaseException as error:\n"
    "        print(type(error).__name__, error, flush=True)\n"
    "    os._exit(0)\n"
    "print('status', os.waitpid(pid, 0)[1])\n"
)


@pytest.mark.parametrize(
    "use",
    [
        "accelrt.init()",
        "accelrt.current_stream()",
        "accelrt.Stream()",
        "accelrt.caching_allocator_alloc(512)",
        "accelrt.Buffer(512)",
        "accelrt.synchronize()",
        "accelrt.current_device()",
        "accelrt.mem_get_info(0)",
        "accelrt.Event().record()",
        "accelrt.get_device_properties(0)",
    ],
)
def test_a_child_forked_after_use_is_told_so(use):
    out = run_code(
        FORK.format(before="accelrt.Buffer(512); s = accelrt.Stream(); accelrt.set_stream(s)", inside=use)
    )
    assert "ForkedError Cannot re-initialize CUDA in forked subprocess" in out
    assert "status 0" in out


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("accelrt.is_available(), accelrt.device_count()", "accelrt.Buffer(4096).fill(7, blocking=True)"),
        (
            "b, s = accelrt.Buffer(4096), accelrt.Stream(); e = s.record_event(); s.synchronize()",
            "del b, s, e",
        ),
    ],
    ids=["after mere queries", "that drops what it inherited"],
)
def test_a_forked_child_works(before, inside):
    out = run_code(FORK.format(before=before, inside=f"{inside}; print('done', flush=True)"))
    assert "done" in out
    assert "status 0" in out


@in_own_process
def test_a_fork_while_threads_allocate_hangs_nobody():
    accelrt.init()

    def allocate():
        accelrt.Buffer(1 << 21)

    def child():
        try:
            accelrt.Buffer(512)
        except accelrt.ForkedError:
            return 3
        return 1

    with Crowd(*[allocate] * 4):
        assert [in_fork(child) for _ in range(20)] == [3] * 20


@in_own_process
def test_a_fork_while_host_functions_run_hangs_no_child():
    def work(over, _):
        stream = accelrt.Stream()
        while not over.is_set():
            for _ in range(50):
                stream.launch_host_func(int)
            stream.synchronize()

    with until_over(work, range(4)):
        assert [in_fork(int) for _ in range(200)] == [0] * 200


def import_until(go_on):
    """A thread in the middle of the first import of green_contexts."""
    begun, plain = threading.Event(), names.module_named

    def wait_in_between(name):
        if name == "accelrt.green_contexts":
            begun.set()
            assert go_on.wait(300)
        return plain(name)

    names.module_named = wait_in_between
    caller = Caller(lambda: accelrt.GreenContext).begin()
    assert begun.wait(300)
    return caller


@in_own_process
def test_an_import_holds_up_no_other_one():
    """A signal's handler may come in the midst of one, and wait for a thread that needs another."""
    go_on = threading.Event()
    caller = import_until(go_on)
    on_a_thread(lambda: accelrt.ExternalStream, timeout=300)
    on_a_thread(lambda: accelrt.Buffer(64).free(), timeout=300)
    go_on.set()
    assert caller.result() is accelrt.GreenContext


@in_own_process
def test_a_name_that_is_asked_for_in_the_midst_of_its_import_is_said_to_come():
    """A signal's handler, or a destructor, on the thread that imports: whether it is there is not known."""
    asked = []
    asks = (
        lambda: accelrt.GreenContext,
        lambda: accelrt.green_contexts,
        lambda: hasattr(accelrt, "GreenContext"),
    )

    class Midst:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if "accelrt.green_contexts" not in sys.modules or asked:
                return
            asked.append(name)
            for ask in asks:
                with pytest.raises(ImportError, match=r"importing accelrt.green_contexts just now") as told:
                    ask()
                assert told.value.name == "accelrt.green_contexts"

    sys.meta_path.insert(0, Midst)
    assert accelrt.GreenContext is accelrt.green_contexts.GreenContext
    assert len(asked) == 1
    assert on_a_thread(lambda: accelrt.GreenContext) is accelrt.GreenContext


@in_own_process
def test_a_fork_waits_for_an_import_and_holds_nothing_up_meanwhile():
    go_on, statuses = threading.Event(), []
    caller = import_until(go_on)

    def fork():
        statuses.append(in_fork(lambda: "GreenContext" not in vars(sys.modules["accelrt.green_contexts"])))

    forker = threading.Thread(target=fork, daemon=True)
    forker.start()
    wait_until_asleep(forker)
    assert accelrt.ExternalStream  # another import
    go_on.set()
    forker.join(300)
    assert statuses == [0]
    assert caller.result() is accelrt.GreenContext
