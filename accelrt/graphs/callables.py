"""Functions that are captured once and replayed: torch.cuda.make_graphed_callables for plain functions."""

from __future__ import annotations

import bisect
import functools
import itertools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from accelrt.arrays.array import Buffer
from accelrt.arrays.copy import copy
from accelrt.core.process import ForkSafeLock
from accelrt.devices.device import current_device
from accelrt.errors import refuse_copy
from accelrt.graphs.array_spec import ArraySpec, host_bytes, require_alike, spec_of
from accelrt.graphs.graph import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing
from accelrt.graphs.pytree import LEAF, Layout, gather, names_of, put_together, take_apart
from accelrt.memory.mempool import MemPool
from accelrt.streams.stream import Stream, current_stream, stream


class Turns:
    """The one stream at a time on which callables that share a pool are replayed."""

    def __init__(self, last: Stream) -> None:
        self.lock: ForkSafeLock = ForkSafeLock()  # copying in and replaying are one step
        self.last: Stream = last

    def take(self, current: Stream) -> None:
        """Puts what comes next on a stream behind everything put into the one that had the last turn."""
        if is_current_stream_capturing():
            raise RuntimeError("a graphed callable cannot be captured; call the function it was made from")
        if current is self.last or current == self.last:
            return
        with stream(self.last):
            if is_current_stream_capturing():
                raise RuntimeError(
                    f"{self.last!r}, where the last call was made, is capturing, so no other stream can wait "
                    "for it; end that capture, or call on another stream before it begins"
                )
        current.wait_stream(self.last)
        self.last = current


class Static:
    """Memory that a graph reads or writes, where it was when that was captured."""

    def __init__(self, memory: Any, name: str) -> None:
        self.memory = memory
        self.name = name
        self.spec: ArraySpec = spec_of(memory, name)

    def require_live(self) -> None:
        """RuntimeError where the buffer was freed under the graph."""
        if self.memory.ptr != self.spec.address:
            raise RuntimeError(
                f"{self.name} was freed, and the graph uses it at {self.spec.address:#x}; make the callable "
                "anew, and leave sample arguments and results alone until it is dropped"
            )

    def take_in(self, given: Any, on_host: bool) -> None:
        """Copies into it: host memory at once, device memory in the current stream's order."""
        if not self.spec.on_host or not on_host:
            copy(self.memory, given, blocking=self.spec.on_host)
        elif self.spec.nbytes:
            host_bytes(self.memory)[:] = host_bytes(given)


class Inputs:
    """The sample arguments of one callable, which its graph reads."""

    def __init__(self, sample: tuple[Any, ...], ordinal: int) -> None:
        leaves: list[Any] = []
        self.count: int = len(sample)
        self.layout: Layout = take_apart(tuple(sample), leaves)
        names = names_of(self.layout, "sample_args")
        self.statics: list[Static] = [Static(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
        self.names: list[str] = list(names_of(self.layout, "args"))
        self.nested: bool = any(part is not LEAF for part in self.layout[2])
        for static in self.statics:
            if isinstance(static.memory, Buffer) and static.memory.device_index != ordinal:
                raise ValueError(
                    f"{static.name} is on device {static.memory.device_index}, the capture on the current "
                    f"one, {ordinal}; make it inside 'with accelrt.device({static.memory.device_index})'"
                )
            if not static.spec.writable:
                raise ValueError(f"{static.name} is read-only, so no other input could be copied into it")
        require_apart(self.statics)
        self.noted: Stream | None = None

    def match(self, args: tuple[Any, ...]) -> list[tuple[Static, Any, ArraySpec]]:
        """Returns what of the arguments is elsewhere than the sample was, each checked against it."""
        if len(args) != self.count:
            raise TypeError(f"{len(args)} arguments were given; the graph was captured with {self.count}")
        leaves, moved = args, []
        if self.nested:
            gathered: list[Any] = []
            gather(self.layout, args, "args", gathered)
            leaves = tuple(gathered)
        for static, leaf, name in zip(self.statics, leaves, self.names, strict=True):
            if leaf is static.memory:
                continue
            spec = spec_of(leaf, name)
            require_alike(spec, static.spec, name)
            if spec.address != static.spec.address:
                moved.append((static, leaf, spec))
        return moved

    def note_use(self, current: Stream) -> None:
        """The sample may be freed, when the callable is dropped, while a replay is under way."""
        if current is not self.noted:
            for static in self.statics:
                if isinstance(static.memory, Buffer) and static.spec.nbytes:
                    static.memory.record_stream(current)
            self.noted = current


def copied(memory: Any, spec: ArraySpec) -> Any:
    """A copy of an input that lies where another one is about to be copied."""
    if spec.on_host:
        return bytes(host_bytes(memory))
    copied_memory = Buffer(spec.nbytes)
    copy(copied_memory, memory, blocking=False)
    return copied_memory


def spans_of(statics: Sequence[Static]) -> list[tuple[int, int, str]]:
    """Tells where memory begins and ends, in the order of addresses."""
    return sorted((s.spec.address, s.spec.address + s.spec.nbytes, s.name) for s in statics if s.spec.nbytes)


def require_apart(statics: Sequence[Static]) -> None:
    """ValueError where two samples share bytes: inputs copied there would overwrite each other."""
    spans = spans_of(statics)
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise ValueError(f"{name} and {other} share memory; pass samples that are apart, as inputs are")


def copy_in(moved: list[tuple[Static, Any, ArraySpec]], current: Stream) -> None:
    """Brings inputs to where the graph reads them.  Host memory may still be read by the last replay."""
    spans = spans_of([static for static, _, _ in moved])
    if any(static.spec.on_host for static, _, _ in moved):
        current.synchronize()

    def kept(given: Any, spec: ArraySpec) -> Any:
        last = bisect.bisect_left(spans, (spec.address + spec.nbytes,)) - 1
        return copied(given, spec) if last >= 0 and spans[last][1] > spec.address else given

    for static, given, spec in [(static, kept(given, spec), spec) for static, given, spec in moved]:
        static.take_in(given, spec.on_host)


class GraphedCallable:
    """A function whose work is a graph, made by make_graphed_callables.

    Attributes:
        graph: CUDAGraph, the captured work; its hooks are called with each replay.
    """

    def __init__(
        self, function: Callable[..., Any], graph: CUDAGraph, inputs: Inputs, result: Any, turns: Turns
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        leaves: list[Any] = []
        self.graph = graph
        self._ordinal = turns.last.device_index
        self._inputs = inputs
        self._layout: Layout = take_apart(result, leaves)
        self._leaves = leaves
        names = names_of(self._layout, "result")
        results = [
            Static(leaf, name) for leaf, name in zip(leaves, names, strict=True) if isinstance(leaf, Buffer)
        ]
        self._buffers = [
            static for static in (*inputs.statics, *results) if isinstance(static.memory, Buffer)
        ]
        self._turns = turns

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns a graph and its memory; make another one with make_graphed_callables")

    def __call__(self, *args: Any) -> Any:
        """Copies the arguments in and replays, on the current stream of the graph's device.

        Arguments:
            args: as the sample was: the same count and structure; of each the same number of bytes, and the
                same shape and type where both sides are arrays.  An argument at the sample's address is not
                copied.  Page-locked host memory has to stay as it is until the stream is past the copy.
        Returns:
            What the function returned, in new containers around the same memory.
        Raises:
            TypeError, ValueError: an argument is not as the sample was; then nothing was copied.
            RuntimeError: memory that the graph uses was freed, or a stream is capturing.
            CudaError: the driver refused.
        """
        moved = self._inputs.match(args)
        current = current_stream(self._ordinal)
        for static in self._buffers:
            static.require_live()
        with self._turns.lock, stream(current):
            self._turns.take(current)
            self._inputs.note_use(current)
            if moved:
                copy_in(moved, current)
            self.graph.replay()
        return put_together(self._layout, iter(self._leaves))


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | CUDAGraph | MemPool | None = None,
    *,
    graphs: Sequence[CUDAGraph] | None = None,
    capture_error_mode: str = "global",
) -> Any:
    """Captures functions into graphs and returns callables that replay them.

        step = accelrt.make_graphed_callables(function, (sample,))
        result = step(buffer)

    Arguments:
        callables: a function, or a tuple of functions that will be called in that order.
        sample_args: a tuple of the function's arguments, or a tuple of such tuples, one for each function:
            Buffers, PinnedBuffers, CUDA arrays and contiguous host arrays, in tuples, lists and dicts as one
            likes, and None.  They become the memory that the graphs read, and hold what was copied in last.
        num_warmup_iters: int, 0 or more: runs of each function before the captures.
        allow_unused_input: bool, torch's, which is about gradients: a function may leave any argument unused.
        pool: (int, int) from graph_pool_handle(), another graph's pool() or MemPool.id, or a MemPool, for
            memory that other graphs share; None is one of their own.  All the functions share it.
        graphs: a sequence of CUDAGraphs to capture into, one for each function, with the hooks that a caller
            registered; None makes them.
        capture_error_mode: "global", "thread_local" or "relaxed"; see CUDAGraph.capture_begin.
    Returns:
        GraphedCallable, or a tuple of them.
    Raises:
        TypeError, ValueError: an argument is of the wrong kind, count or device.
        RuntimeError: the current stream is capturing, or a graph of graphs was captured already.
        CaptureError: a function does what cannot be captured.
        Exception: whatever a function or a hook raised.  In each case no graph is left, nor its memory.

    **Results** lie in the graphs' memory: they are valid until the next call of the same callable or, as the
    functions share one pool, of one before it in the tuple.  Copy what is to stay.  Freeing them, or the
    sample, under the callable is an error that the next call raises.

    **Streams.** Each call puts the copies and the replay into the current stream.  Calls that share a pool
    run one after the other: a call on another stream than the last one waits for all that was put into that
    one before, so for what reads the results there too.  Another stream has to wait for a result as for any
    other work.  Threads may call at the same time, but not count on whose result is there afterwards.

    Host memory in sample_args is read when the graph runs; before another input is copied there the stream is
    waited for.
    """
    functions = callables if isinstance(callables, tuple) else (callables,)
    samples = sample_args if isinstance(callables, tuple) else (sample_args,)
    check_calls(functions, samples, num_warmup_iters)
    if not isinstance(allow_unused_input, bool):
        raise TypeError(f"allow_unused_input is {allow_unused_input!r}; pass a bool")
    of_each = [CUDAGraph() for _ in functions] if graphs is None else list(graphs)
    check_graphs(of_each, len(functions))
    inputs = [Inputs(sample, current_device()) for sample in samples]
    if is_current_stream_capturing():
        raise RuntimeError("the current stream is capturing; make graphed callables outside captures")
    # The warm-up has a stream of its own: results keep the stream of the capture, and would keep what the
    # warm-up left idle on it; this stream and its memory are there for the next warm-up.
    current, warm, side = current_stream(), Stream(), Stream()
    warm.wait_stream(current)
    try:
        with stream(warm):
            warm_up(functions, samples, num_warmup_iters)
    finally:
        current.wait_stream(warm)
    results = capture(functions, samples, of_each, side, pool, capture_error_mode)
    turns = Turns(current)
    graphed = tuple(map(GraphedCallable, functions, of_each, inputs, results, [turns] * len(of_each)))
    return graphed if isinstance(callables, tuple) else graphed[0]


def capture(
    functions: tuple[Any, ...],
    samples: tuple[tuple[Any, ...], ...],
    graphs: list[CUDAGraph],
    side: Stream,
    pool: Any,
    mode: str,
) -> list[Any]:
    """Captures each function on a stream; the results.  Where one fails, none stays captured."""
    results: list[Any] = []
    shared = graph_pool_handle() if pool is None else pool
    try:
        for function, sample, target in zip(functions, samples, graphs, strict=True):
            with graph(target, shared, side, mode):
                results.append(function(*sample))
    except BaseException:
        results.clear()  # the traceback holds on to this frame
        for target in graphs:
            target.reset()
        raise
    return results


def warm_up(functions: tuple[Any, ...], samples: tuple[tuple[Any, ...], ...], rounds: int) -> None:
    """Runs each function, and drops its results."""
    for function, sample in zip(functions, samples, strict=True):
        for _ in range(rounds):
            function(*sample)


def check_calls(functions: tuple[Any, ...], samples: Any, rounds: Any) -> None:
    """TypeError or ValueError where functions, samples or the number of warm-ups are not what they may be."""
    for function in functions:
        if not callable(function):
            raise TypeError(f"{function!r} cannot be called; callables is a function or a tuple of them")
    if not isinstance(samples, tuple) or not all(isinstance(sample, tuple) for sample in samples):
        raise TypeError("sample_args is a tuple of arguments; for a tuple of functions, of such tuples")
    if len(samples) != len(functions):
        raise ValueError(f"{len(samples)} sample_args for {len(functions)} functions; pass a tuple for each")
    if isinstance(rounds, bool) or not isinstance(rounds, numbers.Integral):
        raise TypeError(f"num_warmup_iters is {rounds!r} of type {type(rounds).__name__}; pass an int")
    if rounds < 0:
        raise ValueError(f"num_warmup_iters is {rounds}; it may be 0 or more")


def check_graphs(graphs: list[Any], count: int) -> None:
    """TypeError, ValueError or RuntimeError where the graphs cannot be captured into."""
    for target in graphs:
        if not isinstance(target, CUDAGraph):
            raise TypeError(f"graphs holds {target!r} of type {type(target).__name__}; pass CUDAGraphs")
        if target.is_capturing or target.is_captured:
            raise RuntimeError(f"{target!r} of graphs was captured already; call reset() first")
    if len(set(map(id, graphs))) != count or len(graphs) != count:
        raise ValueError(f"graphs has {len(set(map(id, graphs)))} CUDAGraphs, not {count}; pass one for each")
