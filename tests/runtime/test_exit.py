"""The interpreter's end, with everything still alive, says nothing and answers 0."""

import os
import signal
import subprocess
import sys

import pytest
from child import run_code

pytestmark = pytest.mark.own_process

ALIVE = (
    "import accelrt, numpy as np, sys\n"
    "stream, event, graph = accelrt.Stream(), accelrt.Event(enable_timing=True), accelrt.CUDAGraph()\n"
    "buffer, pinned = accelrt.Buffer(1 << 20), accelrt.PinnedBuffer(4096)\n"
    "array = np.frombuffer(pinned, np.uint8)\n"
    "accelrt.set_stream(stream)\n"
    "event.record()\n"
)


def test_with_everything_alive():
    assert run_code(ALIVE + "print('end')").split() == ["end"]


def test_with_host_functions_under_way():
    out = run_code(
        ALIVE + "import time\n"
        "for n in range(3):\n"
        "    stream.launch_host_func(lambda n=n: (time.sleep(0.05), print(n, flush=True)))\n"
    )
    assert out.split() == ["0", "1", "2"]


def test_in_the_middle_of_a_capture():
    assert run_code(ALIVE + "graph.capture_begin()\nbuffer.fill(1)\nprint('end')").split() == ["end"]


def test_with_a_graph_in_flight_and_cycles_around_it():
    out = run_code(
        ALIVE + "me = {}\n"
        "with accelrt.graph(graph, stream=stream):\n"
        "    buffer.fill(1)\n"
        "    stream.launch_host_func(lambda: me.get('graph'))\n"
        "me['graph'] = me['me'] = graph\n"
        "me['self'] = me\n"
        "for _ in range(50):\n"
        "    graph.replay()\n"
        "print('end')\n"
    )
    assert out.split() == ["end"]


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_functions_run_and_no_capture_breaks_beside_one_that_a_daemon_thread_has_open(mode):
    out = run_code(
        "import accelrt, threading, time\n"
        "from accelrt.core import process\n"
        "from accelrt.driver.registry import Rows\n"
        "accelrt.init()\n"
        "stream, captured, opened = accelrt.Stream(), accelrt.Stream(), threading.Event()\n"
        "def look():\n"
        "    print(Rows().capture_status(0, captured.cuda_stream)[:2])\n"
        "process.call_at_exit('look', 'leaks', look)  # once the functions have run\n"
        "def capture():\n"
        f"    with accelrt.graph(accelrt.CUDAGraph(), stream=captured, capture_error_mode={mode!r}):\n"
        "        opened.set()\n"
        "        threading.Event().wait()\n"
        "threading.Thread(target=capture, daemon=True).start()\n"
        "opened.wait()\n"
        "for n in range(3):\n"
        "    stream.launch_host_func(lambda n=n: (time.sleep(0.05), print(n, flush=True)))\n"
    )
    assert out.split("\n")[:4] == ["0", "1", "2", "(0, 1)"]


def test_functions_of_a_device_that_failed_are_not_waited_for():
    out = run_code(
        "import accelrt, threading\n"
        "from accelrt.driver import testing as faults\n"
        "faults.wrap('host')\n"
        "accelrt.init(driver='faults')\n"
        "accelrt.Stream().launch_host_func(threading.Event().wait)\n"
        "faults.arm(1, 700, 'onward', ['memory_info', 'device_synchronize', 'close'])\n"
        "print('end')\n"
    )
    assert out.split() == ["end"]


def test_replays_that_daemon_threads_go_on_with_are_refused_at_the_exit():
    out = run_code(
        "import accelrt, atexit, threading, time\n"
        "graph, exiting, refused = accelrt.CUDAGraph(), threading.Event(), threading.Event()\n"
        "with accelrt.graph(graph):\n"
        "    accelrt.current_stream().launch_host_func(int)\n"
        "def work():\n"
        "    exiting.wait()\n"
        "    try:\n"
        "        while True:\n"
        "            graph.replay()\n"
        "            time.sleep(0.01)\n"
        "    except accelrt.CudaError as error:\n"
        "        print(error, flush=True)\n"
        "    refused.set()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "accelrt.Stream().launch_host_func(refused.wait)\n"
        "atexit.register(exiting.set)\n"
    )
    assert "DEINITIALIZED" in out


def test_from_a_thread_that_outlives_the_main_one():
    out = run_code(
        "import accelrt, threading, time\n"
        "def work():\n"
        "    time.sleep(0.1)\n"
        "    b = accelrt.Buffer(512)\n"
        "    b.fill(1, blocking=True)\n"
        "    print('done')\n"
        "threading.Thread(target=work).start()\n"
    )
    assert out.split() == ["done"]


def ended_by_interrupts(code, **environment):
    """Runs code in a child and interrupts it from its exit on until it ends: its status and output."""
    code += "import atexit; atexit.register(print, 'exiting', flush=True)\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    lines = []
    for line in child.stdout:
        lines.append(line)
        if line == "exiting\n":
            break
    for _ in range(20):
        child.send_signal(signal.SIGINT)
        try:
            status = child.wait(30)  # another one, while the interpreter ends, would end it at once
            break
        except subprocess.TimeoutExpired:
            pass
    else:
        child.kill()
        status = child.wait()
    return status, "".join(lines) + child.stdout.read()


NEVER_ENDING = {
    "waits": "import threading\nstream.launch_host_func(threading.Event().wait)\n",
    "sleeps": "import time\nstream.launch_host_func(lambda: time.sleep(1000))\n",
    "computes": "def work():\n    while True: pass\nstream.launch_host_func(work)\n",
    "behind others": "import threading\nfor _ in range(3): stream.launch_host_func(threading.Event().wait)\n",
}


@pytest.mark.parametrize("kind", NEVER_ENDING)
def test_an_interruption_ends_the_wait_for_a_function_that_does_not_end(kind):
    status, out = ended_by_interrupts(ALIVE + NEVER_ENDING[kind])
    assert status == 0, out
    assert "KeyboardInterrupt" in out


def test_an_interruption_ends_the_wait_for_a_loop_that_does_not_end():
    code = (
        "import accelrt\n"
        "flag, graph = accelrt.Buffer(4), accelrt.CUDAGraph()\n"
        "flag.fill(1, width=4, blocking=True)\n"
        "with accelrt.graph(graph):\n"
        "    with graph.while_(flag):\n"
        "        flag.fill(1, width=4)\n"
        "graph.replay()\n"
    )
    status, out = ended_by_interrupts(code, ACCELRT_DRIVER="host")
    assert status == 0, out
    assert "KeyboardInterrupt" in out


def test_daemon_threads_that_go_on_are_refused_at_the_exit():
    out = run_code(
        "import accelrt, threading, time\n"
        "ran, refused, once = [], [], threading.Semaphore(0)\n"
        "def work():\n"
        "    stream = accelrt.Stream()\n"
        "    while True:\n"
        "        try:\n"
        "            stream.launch_host_func(once.release)\n"
        "        except accelrt.CudaError as error:\n"
        "            refused.append(error)\n"
        "for _ in range(4):\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "[once.acquire() for _ in range(40)]\n"
        "def last():\n"
        "    while not refused: pass\n"
        "    print(refused[0])\n"
        "import atexit, accelrt.runtime.init\n"
        "accelrt.Stream().launch_host_func(lambda: time.sleep(0.1))\n"
        "accelrt.Stream().launch_host_func(lambda: print('ran', flush=True))\n"
        "accelrt.Stream().launch_host_func(last)\n"
    )
    assert "ran" in out
    assert "DEINITIALIZED" in out


def test_what_functions_raised_and_nobody_asked_for_is_told_before_the_end():
    out = run_code(
        "import accelrt, sys\n"
        "sys.unraisablehook = lambda e: print('told', type(e.exc_value).__name__, e.exc_value.args[0])\n"
        "stream = accelrt.Stream()\n"
        "def fail(n):\n"
        "    raise KeyError(n)\n"
        "for n in range(100):\n"
        "    stream.launch_host_func(lambda n=n: fail(n))\n"
    )
    lines = out.split("\n")
    assert lines[0] == "told KeyError 0"
    assert lines[31] == "told KeyError 31"
    assert lines[32] == "told RuntimeError 68 more host functions raised"
