"""The interpreter's end, with everything still alive, says nothing and answers 0."""

import pytest
from test_import import child

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
    assert child(ALIVE + "print('end')").split() == ["end"]


def test_with_host_functions_under_way():
    out = child(
        ALIVE + "import time\n"
        "for n in range(3):\n"
        "    stream.launch_host_func(lambda n=n: (time.sleep(0.05), print(n, flush=True)))\n"
    )
    assert out.split() == ["0", "1", "2"]


def test_in_the_middle_of_a_capture():
    assert child(ALIVE + "graph.capture_begin()\nbuffer.fill(1)\nprint('end')").split() == ["end"]


def test_with_a_graph_in_flight_and_cycles_around_it():
    out = child(
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


def test_from_a_thread_that_outlives_the_main_one():
    out = child(
        "import accelrt, threading, time\n"
        "def work():\n"
        "    time.sleep(0.1)\n"
        "    b = accelrt.Buffer(512)\n"
        "    b.fill(1, blocking=True)\n"
        "    print('done')\n"
        "threading.Thread(target=work).start()\n"
    )
    assert out.split() == ["done"]
