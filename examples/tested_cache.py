"""A cache of device memory, and how accelrt.testing finds what is wrong with its first version.

python tested_cache.py
"""

from collections.abc import Callable
from functools import partial

import accelrt
from accelrt import testing

SIZE = 4 << 20


class Cache:
    """Keeps one buffer for who asks for memory next; two of its steps are wrong."""

    def __init__(self) -> None:
        self.spare: accelrt.Buffer | None = None
        self.handed_out = 0

    def take(self) -> accelrt.Buffer:
        count = self.handed_out
        buffer, self.spare = self.spare, None
        if buffer is None:
            buffer = accelrt.Buffer(SIZE)  # calls the driver: another thread may come in here
        self.handed_out = count + 1
        return buffer

    def give(self, buffer: accelrt.Buffer) -> None:
        self.spare = buffer
        self.handed_out -= 1


class Mended(Cache):
    """Counts in one step, and says how to end."""

    def take(self) -> accelrt.Buffer:
        buffer, self.spare = self.spare, None
        if buffer is None:
            buffer = accelrt.Buffer(SIZE)
        self.handed_out += 1
        return buffer

    def close(self) -> None:
        self.spare = None


def first_lines_of(check: Callable[[], object]) -> str:
    """What a check says, in its first two lines; "passed" where it finds nothing."""
    try:
        check()
    except AssertionError as error:
        return " ".join(str(error).split("\n")[:2])
    return "passed"


def leaks(cache: Cache) -> None:
    with testing.check_leaks():
        cache.give(cache.take())
        if isinstance(cache, Mended):
            cache.close()


def two_threads(kind: type[Cache]) -> None:
    def make() -> Cache:
        accelrt.empty_cache()  # so that an allocation asks the driver
        return kind()

    testing.interleave(kind.take, kind.take, make, observe=lambda cache: cache.handed_out)


def failing_driver(cache: Mended) -> int:
    """Fails each call of the driver in turn: whatever fails, the count is right."""
    errors = 0
    for call, error in testing.failing_calls(lambda: cache.give(cache.take())):
        assert cache.handed_out == 0, f"call {call} failed, and the count is {cache.handed_out}"
        errors += error is not None
        cache.close()
        accelrt.empty_cache()
    return errors


def run() -> None:
    first, mended = Cache(), Mended()
    print("leaks:", first_lines_of(partial(leaks, first)))
    print("leaks, mended:", first_lines_of(partial(leaks, mended)))
    print("two threads:", first_lines_of(partial(two_threads, Cache)))
    print("two threads, mended:", first_lines_of(partial(two_threads, Mended)))
    print(f"a failing driver, mended: {failing_driver(mended)} errors, and each count was right")


def main() -> None:
    print(f"on {testing.use_device()}")
    run()
    accelrt.empty_cache()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
