"""Requests that are refused, in processes of their own on a small device."""

import functools

from child import in_child, in_own_process

import accelrt

MIB = 1 << 20
DEVICE = 256 * MIB
PLAIN = "expandable_segments:False"


def refused(size, make=accelrt.caching_allocator_alloc):
    """The error of a request, after what every text has to be."""
    error = None
    try:
        make(size)
    except accelrt.OutOfMemoryError as raised:
        error = raised
    assert error is not None, f"{size} bytes were served"
    text = str(error)
    print(text)
    lines = text.splitlines()
    assert len(lines) <= 25
    assert "out of memory. Tried to allocate " in lines[0]
    assert all(len(line) < 400 for line in lines)
    assert error.args == (text,)
    return error


# Makes a test run in a process of its own on the small device.
on_a_small_device = functools.partial(in_own_process, ACCELRT_HOST_MEMORY=str(DEVICE), ACCELRT_ALLOC_CONF="")


def run(state, conf="", *arguments):
    """Runs a state's function in a process of its own, with these settings; what it printed."""
    settings = {"ACCELRT_HOST_MEMORY": str(DEVICE), "ACCELRT_ALLOC_CONF": conf}
    return in_child(state, *arguments, **settings)


def blocks(size, count, stream=None):
    return [accelrt.caching_allocator_alloc(size, stream=stream) for _ in range(count)]
