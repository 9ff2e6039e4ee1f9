"""Streams in asyncio tasks and generators: contexts that interleave are told, and follow() keeps to one."""

import asyncio
import contextlib
import inspect

import numpy as np
import pytest
from beside import on_a_thread

import accelrt

TASKS = 4


@pytest.fixture(autouse=True)
def _thread_is_left_as_it_was():
    yield
    assert accelrt.current_stream() is accelrt.default_stream()


def run(*coroutines):
    """What each of several tasks of one loop returned or raised."""

    async def all_of_them():
        return await asyncio.gather(*coroutines, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_tasks_that_take_turns_inside_of_stream_contexts_hear_of_it():
    async def work():
        with accelrt.stream(accelrt.Stream()):
            await asyncio.sleep(0)

    *errors, last = run(*(work() for _ in range(TASKS)))
    assert last is None  # it was the innermost all the time
    for error in errors:
        assert isinstance(error, RuntimeError)
        assert "accelrt.stream(s).follow(...)" in str(error)


def test_asyncio_shows_the_name_of_the_coroutine():
    async def work():
        return repr(asyncio.current_task())

    (shown,) = run(accelrt.stream(accelrt.Stream()).follow(work()))
    assert "work" in shown
    assert "without __name__" not in shown


def test_tasks_whose_contexts_end_before_they_wait_need_nothing():
    async def work(stream):
        for _ in range(5):
            with accelrt.stream(stream):
                assert accelrt.current_stream() is stream
            await asyncio.sleep(0)

    assert run(*(work(accelrt.Stream()) for _ in range(TASKS))) == [None] * TASKS


def test_followed_tasks_find_their_stream_in_every_step():
    seen = []

    async def inner(stream):
        await asyncio.sleep(0)
        assert accelrt.current_stream() is stream
        with accelrt.stream(accelrt.Stream()):
            pass
        return stream

    async def work(stream):
        for _ in range(5):
            assert accelrt.current_stream() is stream
            assert await inner(stream) is stream
        return stream

    async def beside():
        for _ in range(20):
            seen.append(accelrt.current_stream())
            await asyncio.sleep(0)

    streams = [accelrt.Stream() for _ in range(TASKS)]
    followed = [accelrt.stream(stream).follow(work(stream)) for stream in streams]
    assert run(*followed, beside()) == [*streams, None]
    assert set(seen) == {accelrt.default_stream()}


def test_a_followed_coroutine_is_one():
    async def work():
        return accelrt.current_stream()

    stream = accelrt.Stream()
    followed = accelrt.stream(stream).follow(work())
    assert inspect.isawaitable(followed)
    assert asyncio.iscoroutine(followed)

    async def outer():
        task = asyncio.create_task(followed)
        return await task, await accelrt.stream(stream).follow(work())

    assert asyncio.run(outer()) == (stream, stream)


def test_cancelling_and_errors_reach_a_followed_task_on_its_stream():
    stream, seen = accelrt.Stream(), []

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(accelrt.current_stream())
            raise KeyError("mine") from None

    async def outer():
        task = asyncio.create_task(accelrt.stream(stream).follow(work()))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(outer())
    assert seen == [stream]


def test_a_context_left_open_over_an_await_of_a_followed_task_is_told():
    async def work():
        with accelrt.stream(accelrt.Stream()):
            await asyncio.sleep(0)

    (error,) = run(accelrt.stream(accelrt.Stream()).follow(work()))
    assert "is left before one that was entered inside of it" in str(error)
    assert accelrt.current_stream() is accelrt.default_stream()


def test_a_generator_leaves_its_stream_current_and_a_followed_one_does_not():
    stream = accelrt.Stream()

    def steps():
        with accelrt.stream(stream):
            yield accelrt.current_stream()

    for inside in steps():
        assert accelrt.current_stream() is inside is stream

    def bare():
        for number in range(3):
            assert accelrt.current_stream() is stream
            yield number

    seen = []
    for number in accelrt.stream(stream).follow(bare()):
        assert accelrt.current_stream() is accelrt.default_stream()
        seen.append(number)
    assert seen == [0, 1, 2]


def test_a_followed_generator_takes_values_errors_and_its_end_on_its_stream():
    stream, seen = accelrt.Stream(), []

    def steps():
        try:
            seen.append((yield 1))
            try:
                yield 2
            except KeyError:
                seen.append(accelrt.current_stream())
                yield 3
        finally:
            seen.append(accelrt.current_stream())

    followed = accelrt.stream(stream).follow(steps())
    assert next(followed) == 1
    assert followed.send("value") == 2
    assert followed.throw(KeyError()) == 3
    followed.close()
    assert seen == ["value", stream, stream]

    def returns():
        yield
        return 5

    def outer():
        return (yield from accelrt.stream(stream).follow(returns()))

    steps = outer()
    next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == 5


def test_a_followed_generator_may_move_to_another_thread():
    stream, seen = accelrt.Stream(), []

    def steps():
        while True:
            yield accelrt.current_stream()

    followed = accelrt.stream(stream).follow(steps())
    assert next(followed) is stream
    on_a_thread(lambda: seen.extend((next(followed), accelrt.current_stream())))
    assert seen == [stream, accelrt.default_stream()]
    assert next(followed) is stream


def test_a_followed_async_generator_finds_its_stream_in_every_step():
    stream, seen = accelrt.Stream(), []

    async def steps():
        try:
            for number in range(3):
                await asyncio.sleep(0)
                assert accelrt.current_stream() is stream
                seen.append((yield number))
        finally:
            seen.append(accelrt.current_stream())

    async def use():
        followed = accelrt.stream(stream).follow(steps())
        async for number in followed:
            assert accelrt.current_stream() is accelrt.default_stream()
            if number == 1:
                break
        assert await followed.asend("value") == 2
        await followed.aclose()

    asyncio.run(use())
    assert seen == [None, "value", stream]


def test_work_of_followed_tasks_goes_to_their_streams():
    out = np.zeros((TASKS, 64), np.uint8)

    async def work(number):
        with accelrt.Buffer(64) as buffer:
            buffer.fill(number)
            await asyncio.sleep(0)
            buffer.copy_to(out[number])

    run(*(accelrt.stream(accelrt.Stream()).follow(work(number)) for number in range(TASKS)))
    assert (out == np.arange(TASKS)[:, None]).all()


@pytest.mark.parametrize("thing", [None, 3, print, [1], asyncio.sleep])
def test_what_has_no_steps_is_refused(thing):
    with pytest.raises(TypeError, match="pass a coroutine, a generator or an async generator"):
        accelrt.stream(accelrt.Stream()).follow(thing)


def test_without_a_stream_the_steps_are_themselves():
    with contextlib.closing(value for value in (1, 2)) as steps:
        assert accelrt.stream(None).follow(steps) is steps
