"""Calls from deep in the program, for what depends on the depth of the stack."""

from timing import Work, nothing


def descend(call, left):
    return call() if left == 0 else descend(call, left - 1)


def deep(call, frames):
    """The call from so many frames further down; making the depth is not timed."""
    return Work(lambda: descend(call, frames), lambda: descend(nothing, frames))
