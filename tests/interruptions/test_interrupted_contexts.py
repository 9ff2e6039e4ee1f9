"""KeyboardInterrupt at every place of contexts in Python: what was current before is current again."""

from contextlib import suppress

import pytest
from every_bytecode import interrupt_everywhere

import accelrt
from accelrt import green_contexts, resources
from accelrt.interface import base, builtin
from accelrt.resources import current
from accelrt.runtime import cuda_bindings
from accelrt.streams import host_parts, steps

pytestmark = pytest.mark.host
PROCESSORS = accelrt.get_device_properties().multi_processor_count


def sweep(operation, modules, state, least):
    before = state()

    def check(_):
        assert state() == before

    reached, escaped = interrupt_everywhere(operation, modules, check=check)
    assert reached >= escaped >= least


@pytest.mark.skipif(PROCESSORS < 2, reason="needs two processors")
def test_green_contexts_with_pools():
    outer, inner = green_contexts.split([1, 1], own_pool=True)

    def enter_both(_):
        with outer:
            accelrt.Buffer(512).free()
            with inner:
                accelrt.Buffer(512).free()

    def state():
        live = outer.mem_pool.snapshot()
        accelrt.Buffer(512).free()  # in no pool
        assert outer.mem_pool.snapshot() == live
        for context in (inner, outer):
            with pytest.raises(RuntimeError, match="not this thread's current context"):
                context.pop_context()
        return accelrt.current_stream(), green_contexts.ask("cuCtxGetCurrent")

    enter_both(None)
    sweep(enter_both, [green_contexts, host_parts, cuda_bindings], state, 60)


def test_a_green_context_whose_ends_are_called_apart():
    context = green_contexts.GreenContext.create(1)

    def set_and_pop(_):
        context.set_context()
        context.pop_context()

    def state():
        with suppress(RuntimeError):
            context.pop_context()  # where the interruption came between the two
        return accelrt.current_stream(), green_contexts.ask("cuCtxGetCurrent")

    set_and_pop(None)
    sweep(set_and_pop, [green_contexts, host_parts, cuda_bindings], state, 40)


@pytest.mark.skipif(accelrt.device_count() < 2, reason="needs two devices")
def test_a_guard_of_an_interfaces_device():
    def switch(_):
        with base.DeviceGuard(builtin.CudaInterface, 1):
            assert accelrt.current_device() == 1

    sweep(switch, [base, builtin], accelrt.current_device, 8)


def test_steps_with_a_stream():
    stream = accelrt.Stream()

    def take(_):
        for seen in accelrt.stream(stream).follow(accelrt.current_stream() for _ in range(2)):
            assert seen == stream

    sweep(take, [steps], accelrt.current_stream, 20)


def test_the_current_resource():
    counted = resources.StatisticsAdaptor(resources.DeviceResource())

    def use(_):
        with resources.use_resource(counted), resources.use_resource(resources.DeviceResource()):
            resources.current_resource()

    sweep(use, [current], current.entered_here, 10)
