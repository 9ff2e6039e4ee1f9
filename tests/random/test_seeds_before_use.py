"""Seeds that are set before accelrt is initialised, and forks."""

import pytest
from child import run_code

pytestmark = pytest.mark.own_process
HOST = {"ACCELRT_DRIVER": "host", "ACCELRT_HOST_DEVICES": "2"}
SHOW = "\nprint([g.initial_seed() for g in accelrt.default_generators])\n"


def seeds(code, **environment):
    return run_code("import accelrt\n" + code + SHOW, **(HOST | environment)).strip().splitlines()


def test_the_last_seed_before_the_first_use_counts():
    code = "accelrt.manual_seed(1)\naccelrt.manual_seed_all(2)\naccelrt.manual_seed(3)\n"
    assert seeds(code + "assert not accelrt.is_initialized()") == ["[3, 2]"]
    assert seeds("accelrt.manual_seed(3)\naccelrt.manual_seed_all(2)") == ["[2, 2]"]
    code = (
        "for n in range(9): accelrt.manual_seed(n)\nfrom accelrt.runtime import init\nprint(len(init._seeds))"
    )
    first, second = seeds(code)
    assert (first, second.split(",")[0]) == ("1", "[8")


def test_seeds_come_before_other_queued_calls_and_in_order_with_states():
    code = (
        "accelrt.lazy_call(lambda: print('seen', accelrt.initial_seed()))\n"
        "state = (5).to_bytes(8, 'little') + bytes(8)\n"
        "accelrt.set_rng_state(state)\naccelrt.set_rng_state(state, 1)\naccelrt.manual_seed(6)\n"
        "assert not accelrt.is_initialized()\naccelrt.init()\n"
    )
    assert seeds(code) == ["seen 6", "[6, 5]"]
    code = "accelrt.manual_seed_all(6)\naccelrt.set_rng_state((5).to_bytes(8, 'little'), 1)\n"
    assert seeds(code) == ["[6, 5]"]


def test_a_queued_call_may_seed():
    assert seeds("accelrt.lazy_call(lambda: accelrt.manual_seed_all(6))") == ["[6, 6]"]


def test_kinds_of_lazy_calls_are_ordered_as_torch_orders_them():
    code = (
        "said = []\n"
        "for name, kind in (('a', {}), ('s1', {'seed': True}), ('all', {'seed_all': True}), ('b', {}),"
        " ('s2', {'seed': True})):\n"
        "    accelrt.lazy_call(lambda name=name: said.append(name), **kind)\n"
        "accelrt.init()\nprint(*said)\n"
        "accelrt.lazy_call(lambda: said.append('now'), seed=True)\nprint(said[-1])"
    )
    assert seeds(code)[:2] == ["all s2 a b", "now"]


def test_seeding_without_a_device_does_nothing():
    code = (
        "import accelrt\naccelrt.manual_seed(1)\naccelrt.manual_seed_all(1)\n"
        "accelrt.seed()\naccelrt.seed_all()\n"
        "accelrt.set_rng_state(bytes(16))\nprint(accelrt.is_initialized())\n"
        "try:\n    accelrt.manual_seed(2**64)\nexcept ValueError: print('refused')\n"
    )
    assert run_code(code, ACCELRT_DRIVER="host", ACCELRT_HOST_DEVICES="0").split() == ["False", "refused"]


FORK = """
import os
def in_fork(show):
    child = os.fork()
    if child == 0:
        try:
            show()
        finally:
            os.sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_fork_before_the_first_use_keeps_seeds_that_were_set_and_no_others():
    code = FORK + "accelrt.manual_seed(4)\nin_fork(lambda: print(accelrt.initial_seed()))\n"
    assert seeds(code)[0] == "4"
    code = FORK + "import accelrt.random\nfor _ in range(2): in_fork(lambda: print(accelrt.initial_seed()))\n"
    first, second = seeds(code)[:2]
    assert first != second


def test_a_fork_after_the_first_use_reads_states_and_uses_no_device():
    code = FORK + (
        "g = accelrt.random.Generator(0).manual_seed(3)\nout = accelrt.empty(4, 'float32')\ng.uniform(out)\n"
        "accelrt.synchronize()\n"
        "def show():\n"
        "    print(g.initial_seed(), g.get_offset())\n"
        "    accelrt.manual_seed(1)\n"
        "    try:\n        accelrt.initial_seed()\n"
        "    except accelrt.ForkedError: print('ForkedError')\n"
        "    try:\n        g.uniform(out)\n"
        "    except accelrt.ForkedError: print('ForkedError')\n"
        "in_fork(show)\n"
    )
    assert seeds(code)[:3] == ["3 4", "ForkedError", "ForkedError"]


def test_a_program_may_end_with_generators_and_graphs_alive():
    code = (
        "g = accelrt.random.Generator(0)\nout = accelrt.empty(4, 'float32')\ngraph = accelrt.CUDAGraph()\n"
        "graph.register_generator_state(g)\n"
        "with accelrt.graph(graph): g.uniform(out)\n"
        "graph.replay()\nimport sys; sys.keep = g, out, graph"
    )
    assert len(seeds(code)) == 1
