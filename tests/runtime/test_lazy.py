"""Initialisation at first use, queued calls, and forks."""

import pytest
from child import run_code

pytestmark = pytest.mark.own_process


def test_first_use_initialises_once_from_many_threads():
    out = run_code(
        "import accelrt, threading\n"
        "ran = []\n"
        "accelrt.lazy_call(lambda: ran.append(1))\n"
        "barrier = threading.Barrier(8)\n"
        "def use():\n"
        "    barrier.wait()\n"
        "    accelrt.current_stream()\n"
        "    accelrt.init()\n"
        "threads = [threading.Thread(target=use) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(len(ran), accelrt.is_initialized())\n"
    )
    assert out.split() == ["1", "True"]


def test_a_queued_call_may_use_the_device():
    out = run_code(
        "import accelrt\n"
        "accelrt.lazy_call(lambda: print('inside', accelrt.device_count()))\n"
        "print('before')\naccelrt.init()\naccelrt.lazy_call(lambda: print('after'))\n",
        ACCELRT_HOST_DEVICES="2",
    )
    assert out.split("\n")[0] == "before"
    assert out.split("\n")[1].startswith("inside")
    assert out.split("\n")[2] == "after"


def test_a_queued_call_that_fails_names_who_queued_it_and_can_be_tried_again():
    out = run_code(
        "import accelrt\n"
        "answers = iter([ValueError('boom')])\n"
        "def call():\n"
        "    for error in answers:\n"
        "        raise error\n"
        "def guilty():\n"
        "    accelrt.lazy_call(call)\n"
        "guilty()\n"
        "try:\n"
        "    accelrt.init()\n"
        "except accelrt.DeferredCudaCallError as error:\n"
        "    print('boom' in str(error), 'guilty' in str(error), type(error.__cause__).__name__)\n"
        "accelrt.init()\n"
        "print(accelrt.is_initialized())\n"
    )
    assert out.split() == ["True", "True", "ValueError", "True"]


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


def test_asking_for_another_driver_after_init_is_refused():
    out = run_code(
        "import accelrt\naccelrt.init()\nname = 'cuda' if accelrt.device(0).type == 'host' else 'host'\n"
        "try:\n    accelrt.init(driver=name)\nexcept RuntimeError as error:\n    print(error)"
    )
    assert "already runs on" in out


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


def test_a_child_forked_after_mere_queries_works():
    out = run_code(
        FORK.format(
            before="print(accelrt.is_available(), accelrt.device_count())",
            inside="b = accelrt.Buffer(4096); b.fill(7, blocking=True); print('child', len(b), flush=1)",
        )
    )
    assert "child 4096" in out
    assert "status 0" in out


def test_a_child_drops_what_it_inherited_without_a_word():
    out = run_code(
        FORK.format(
            before="b = accelrt.Buffer(4096); s = accelrt.Stream(); e = s.record_event(); s.synchronize()",
            inside="del b, s, e; print('dropped', flush=True)",
        )
    )
    assert "dropped" in out
    assert "status 0" in out


def test_a_fork_while_threads_allocate_hangs_nobody():
    out = run_code(
        "import accelrt, os, threading\n"
        "stop = False\n"
        "def churn():\n"
        "    while not stop:\n"
        "        accelrt.Buffer(1 << 21)\n"
        "threads = [threading.Thread(target=churn) for _ in range(4)]\n"
        "[t.start() for t in threads]\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try:\n"
        "            accelrt.Buffer(512)\n"
        "        except accelrt.ForkedError:\n"
        "            os._exit(3)\n"
        "        os._exit(1)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3\n"
        "stop = True\n"
        "[t.join() for t in threads]\n"
        "print('done')\n"
    )
    assert out.split() == ["done"]


def test_a_fork_while_host_functions_run_hangs_no_child():
    out = run_code(
        "import accelrt, os, select, threading, time\n"
        "stop = False\n"
        "def work():\n"
        "    stream = accelrt.Stream()\n"
        "    while not stop:\n"
        "        for _ in range(50):\n"
        "            stream.launch_host_func(int)\n"
        "        stream.synchronize()\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[t.start() for t in threads]\n"
        "hung = 0\n"
        "for _ in range(400):\n"
        "    reads, writes = os.pipe()\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os.write(writes, b'x')\n"
        "        os._exit(0)\n"
        "    if not select.select([reads], [], [], 20)[0]:\n"
        "        hung += 1\n"
        "        os.kill(pid, 9)\n"
        "    os.waitpid(pid, 0)\n"
        "    os.close(reads), os.close(writes)\n"
        "    if hung: break\n"
        "stop = True\n"
        "[t.join() for t in threads]\n"
        "print('hung', hung)\n"
    )
    assert out.split() == ["hung", "0"]
