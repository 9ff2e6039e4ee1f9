"""Clusters and the like of kernel nodes, with driver call 1 failing, then 2, ..., until they succeed."""

import gc

import pytest
from child import in_own_process, wrap_host
from graph_memory import options, read_numbers, replay
from kernel_sources import image_for, numbers

import accelrt
from accelrt.driver import testing as faults
from accelrt.testing import failing_calls

UNKNOWN, OUT_OF_MEMORY = 999, 2


def launchable():
    """A definition on the host device, memory and a kernel for its nodes."""
    wrap_host()
    kernel = accelrt.Module(image_for("host")).function("number", "uint32_t* at, uint32_t value")
    return accelrt.GraphDefinition(), accelrt.Buffer(1024), kernel


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
@in_own_process(printing="")
def test_a_node_that_is_not_given_all_of_them_is_not_there(code):
    definition, x, kernel = launchable()
    failures = 0

    def add():
        definition.kernel(kernel, 4, 64, (x, 5), cluster=2, cooperative=True, priority=-1)

    add()  # reads the device's properties, once
    definition.nodes()[0].remove()
    for call, error in failing_calls(add, code):
        failures += error is not None
        assert len(definition.nodes()) == (error is None), call
        if error is None:
            assert options(definition.nodes()[0]) == ((2, 1, 1), True, -1)
            definition.nodes()[0].remove()
    assert failures >= 6  # two looks, the node, and three attributes


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
@in_own_process(printing="")
def test_a_change_that_fails_leaves_all_of_them_as_they_were(code):
    definition, x, kernel = launchable()
    node = definition.kernel(kernel, 4, 64, (x, 5), cluster=2)
    failures = 0

    def change():
        node.update(args=(x, 6), cluster=4, cooperative=True, priority=-1)

    for call, error in failing_calls(change, code):
        failures += error is not None
        changed = error is None
        assert options(node) == (((4, 1, 1), True, -1) if changed else ((2, 1, 1), False, 0)), call
        replay(definition.instantiate())
        assert (read_numbers(x) == numbers(6 if changed else 5)).all()
        if changed:
            node.update(args=(x, 5), cluster=2, cooperative=False, priority=0)
    assert failures >= 8


@in_own_process(printing="")
def test_a_node_of_a_capture_that_is_not_given_them_keeps_its_memory():
    wrap_host()
    graph = accelrt.CUDAGraph(keep_graph=True)
    kernel = accelrt.Module(image_for("host")).function("number", "uint32_t* at, uint32_t value")
    with accelrt.graph(graph, stream=accelrt.Stream()):
        definition = accelrt.GraphDefinition(graph)
        x = accelrt.Buffer(1024)
        faults.arm(1, UNKNOWN, "once", ["kernel_node_attribute_set"])
        with pytest.raises(accelrt.CudaError, match="kernel_node_attribute_set"):
            definition.kernel(kernel, 4, 64, (x, 5), cluster=2)
        faults.disarm()
    del x, kernel
    gc.collect()
    accelrt.empty_cache()
    replay(graph)


@in_own_process(printing="[True, True, True, True, False]\n")
def test_a_change_that_the_driver_refuses_midway_leaves_the_node_as_it_was():
    """Whether the driver's n-th call for a change of grid, cluster and arguments was there to be refused."""
    refused = []
    definition, x, kernel = launchable()
    node = definition.kernel(kernel, 4, 64, (x, 5), cluster=4, priority=-1)
    for number in range(1, 6):
        faults.arm(number, UNKNOWN, "once", ["graph_node_set", "kernel_node_attribute_set"])
        try:
            node.update(grid=2, cluster=2, priority=0, args=(x, 6))
        except accelrt.CudaError:
            refused.append(True)
            assert (node.params.grid, *options(node)) == ((4, 1, 1), (4, 1, 1), False, -1)
            replay(definition.instantiate())
            assert (read_numbers(x) == numbers(5)).all()
        else:
            refused.append(False)
            assert (node.params.grid, *options(node)) == ((2, 1, 1), (2, 1, 1), False, 0)
        faults.disarm()
    print(refused)
