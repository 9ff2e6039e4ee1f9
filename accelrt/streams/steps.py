"""Coroutines and generators whose steps run with a stream current, and nothing between the steps does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any

__all__: list[str] = []

NewContext = Callable[[], AbstractContextManager[None]]  # makes the context that each step enters


class Steps:
    """A generator's steps, each of which enters the stream's context and leaves it."""

    def __init__(self, new_context: NewContext, steps: Any) -> None:
        self.new_context = new_context
        self.steps = steps

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with self.new_context():  # calls of its two functions could be interrupted between them and a try
                return step(*arguments)
        except RuntimeError:
            self.steps.close()  # it may wait inside of a stream context, which this leaves
            raise

    def send(self, value: Any) -> Any:
        return self.run(self.steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self.run(self.steps.throw, *error)

    def close(self) -> None:
        self.run(self.steps.close)


class GeneratorSteps(Steps, Generator[Any, Any, Any]):
    """A generator."""


class CoroutineSteps(Steps, Coroutine[Any, Any, Any]):
    """A coroutine, or a step of an async generator."""

    @property
    def __name__(self) -> str:
        """The name of the coroutine, by which asyncio shows its task."""
        name: str = self.steps.__name__
        return name

    def __await__(self) -> Generator[Any, Any, Any]:
        return GeneratorSteps(self.new_context, self.steps)


class AsyncGeneratorSteps(AsyncGenerator[Any, Any]):
    """An async generator, whose steps are coroutines."""

    def __init__(self, new_context: NewContext, steps: AsyncGenerator[Any, Any]) -> None:
        self.new_context = new_context
        self.steps = steps

    def follow(self, step: Any) -> CoroutineSteps:
        return CoroutineSteps(self.new_context, step)

    def __anext__(self) -> CoroutineSteps:
        return self.follow(self.steps.__anext__())

    def asend(self, value: Any) -> CoroutineSteps:
        return self.follow(self.steps.asend(value))

    def athrow(self, *error: Any) -> CoroutineSteps:
        return self.follow(self.steps.athrow(*error))

    def aclose(self) -> CoroutineSteps:
        return self.follow(self.steps.aclose())


def follow(new_context: NewContext | None, steps: Any) -> Any:
    """Makes what StreamContext.follow returns."""
    kinds: dict[Any, Any] = {
        Coroutine: CoroutineSteps,
        Generator: GeneratorSteps,
        AsyncGenerator: AsyncGeneratorSteps,
    }
    for kind, wrapper in kinds.items():
        if isinstance(steps, kind):
            return steps if new_context is None else wrapper(new_context, steps)
    called = ", what calling it returns" if callable(steps) else ""
    raise TypeError(
        f"steps is {steps!r} of type {type(steps).__name__}; pass a coroutine, a generator or an async "
        f"generator{called}"
    )
