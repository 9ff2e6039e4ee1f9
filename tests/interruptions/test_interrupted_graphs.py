"""KeyboardInterrupt at every place of graphed callables, random numbers, sleep: no memory or lock stays."""

import gc

import numpy as np
import pytest
from beside import Caller
from every_bytecode import interrupt_everywhere, some_places

import accelrt
from accelrt.driver.host import driver as host
from accelrt.graphs import array_spec, callables, hooks, pytree
from accelrt.random import Generator, defaults, generator, graph_states, launches

pytestmark = pytest.mark.host
CALLABLES = [array_spec, callables, hooks, pytree]
RANDOM = [defaults, generator, graph_states, launches]
SIZE = 4096


def left():
    gc.collect()
    accelrt.synchronize()
    counts = host.live_objects()
    return accelrt.memory_allocated(), counts["graphs"], counts["execs"]


def check_nothing_left(before):
    assert not accelrt.is_current_stream_capturing()
    assert accelrt.current_stream() == accelrt.default_stream()
    assert left() == before


def on_another_thread(function):
    """Calls it where a lock that this thread kept would be waited for."""
    Caller(function).begin().result()


def make_and_call(_):
    sample, other = accelrt.full(SIZE, 1, "u1"), accelrt.full(SIZE, 2, "u1")

    def fill(array):
        out = accelrt.empty(SIZE, "u1")
        accelrt.copy(out, array, SIZE, blocking=False)
        return out

    step, again = accelrt.make_graphed_callables((fill, fill), ((sample,), (other,)), 1)
    step.graph.register_replay_hook(int).remove()
    assert (step(other).numpy() == 2).all()
    assert (again(np.full(SIZE, 3, "u1")).numpy() == 3).all()


@some_places(23)
def test_making_and_calling_graphed_callables(places):
    make_and_call(None)
    before = left()

    reached, escaped = interrupt_everywhere(
        make_and_call, CALLABLES, check=lambda _: check_nothing_left(before), places=places
    )
    assert escaped == reached > 5


class Drawn:
    """A graph that draws from a generator."""

    def __init__(self):
        self.generator, self.out = Generator(0).manual_seed(5), accelrt.empty(64, "f4")
        self.graph = accelrt.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with accelrt.graph(self.graph):
            self.generator.uniform(self.out)

    def replay(self):
        self.graph.replay()
        accelrt.synchronize()
        assert (self.out.numpy() < 1).all()


@some_places(7)
def test_replays_that_draw_random_numbers(places):
    Drawn().replay()

    def check(drawn):
        on_another_thread(drawn.replay)
        drawn.replay()

    reached, escaped = interrupt_everywhere(Drawn.replay, RANDOM, Drawn, check, places)
    assert escaped == reached >= 1


@some_places(15)
def test_captures_that_draw_random_numbers(places):
    Drawn().replay()
    before = left()

    def make(_):
        Drawn()

    def check(_):
        check_nothing_left(before)
        on_another_thread(lambda: Drawn().replay())
        check_nothing_left(before)

    reached, escaped = interrupt_everywhere(make, RANDOM, check=check, places=places)
    assert escaped == reached >= 3


def sleep_and_wake(pool):
    with accelrt.use_mem_pool(pool):
        array = accelrt.full(SIZE, 4, "u1")
    accelrt.memory.sleep(pool)
    accelrt.memory.wake(pool)
    assert (array.numpy() == 4).all()


def test_sleep_within_code_that_is_interrupted():
    """Sleep itself is compiled: an interruption comes before it or behind it, and never in between."""
    sleep_and_wake(accelrt.MemPool())
    before = left()

    def check(pool):
        if pool.is_asleep():
            pool.wake()
        sleep_and_wake(pool)
        check_nothing_left(before)

    reached, escaped = interrupt_everywhere(sleep_and_wake, [__name__], accelrt.MemPool, check)
    assert reached == escaped > 5
