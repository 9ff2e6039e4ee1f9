"""The ends of errors about names: for those that programs written for torch, CuPy and NumPy ask for, what
accelrt has instead; for those of the user's choice, which there are, and the one that was meant."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_NAMED = 10

_OTHERS = "hand the array on without a copy, say torch.from_dlpack(array) or cupy.from_dlpack(array)"
COMPUTED = f"write it as a kernel with accelrt.elementwise(), or {_OTHERS}"
_REDUCED = f"there are no reductions and no linear algebra: {_OTHERS}"
_COMPUTING = (
    "abs add clip cos divide exp log maximum minimum multiply power round sin sqrt subtract tanh where"
)
_REDUCING = "all any argmax argmin argsort cumsum dot matmul max mean min prod sort std sum var"


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: text for names, text in table.items() for name in names.split()}


OF_ARRAYS = _by_name(
    {
        _COMPUTING: COMPUTED,
        "add_ div mul mul_ pow": COMPUTED,
        _REDUCING: _REDUCED,
        "mm norm": _REDUCED,
        "cpu get tobytes": "numpy() copies the elements to the host",
        "cuda to to_device": "accelrt.asarray(array, device=...) copies to a device, astype(dtype) converts",
        "bfloat16 bool double float half int long type": "astype(dtype) converts, view(dtype) does not",
        "data data_ptr": "ptr is the address of the first element",
        "dim numel element_size get_device": "ndim, size, itemsize and device_index are attributes",
        "flatten ravel squeeze view_as": "reshape(-1), reshape(...) and indices make views",
        "unsqueeze": "an index of None makes an axis, as in array[None]",
        "moveaxis swapaxes": "permute(axes) and T make views",
        "fill": "fill_(value) fills it",
        "zero_": "fill_(0) fills it",
        "copy_from set": "copy_(source) copies into it",
        "copy_to": "numpy() copies the elements to the host, accelrt.copy(target, array) to anywhere",
        "is_pinned": "accelrt.is_pinned(array) tells",
        "pin_memory": "accelrt.empty(..., pin_memory=True) makes page-locked memory, copy_() fills it",
        "backward detach grad requires_grad": f"there are no gradients; {_OTHERS}",
    }
)
OF_ACCELRT = _by_name(
    {
        _COMPUTING: COMPUTED,
        _REDUCING: _REDUCED,
        "array as_tensor tensor": "accelrt.asarray() makes an Array of anything that NumPy takes",
        "asnumpy": "array.numpy() copies the elements to the host",
        "ndarray Tensor": "the type is accelrt.Array",
        "concatenate cat stack vstack hstack": "copy into slices of accelrt.empty(), as in out[:n] = first",
        "eye linspace logspace": "accelrt.asarray(numpy.linspace(...)) copies what NumPy makes",
        "rand randn uniform normal": "accelrt.random.rand() and randn() make Arrays of random numbers",
        "RawKernel RawModule Program": "accelrt.compile(source) compiles, accelrt.Module(image) loads",
        "ReductionKernel": _REDUCED,
        "Graph": "accelrt.CUDAGraph, and accelrt.graph() that captures into one",
        "Device": "accelrt.device(index) is a device, and the context manager that chooses it",
        "DeviceBuffer": "accelrt.Buffer(nbytes) is memory of a device",
        "malloc alloc": "accelrt.Buffer(nbytes), or accelrt.caching_allocator_alloc(size)",
        "get_default_memory_pool MemoryPool": "accelrt.MemPool is a pool apart, accelrt.memory the common",
        "cuda": "accelrt has torch.cuda's names itself: accelrt.Stream, accelrt.memory_allocated() ...",
    }
)


def explain(text: str, substitute: str | None) -> str:
    """The text of an AttributeError, with what to write instead where that is known."""
    return f"{text}; {substitute}" if substitute else text


def meant(name: str, known: Iterable[str]) -> str:
    """The one of the names that there are that was meant, or "" where none is near."""
    from difflib import get_close_matches  # long to import

    return next(iter(get_close_matches(name, known, 1)), "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Asks whether one of the names that there are was meant, where one is near; else ""."""
    near = meant(name, known)
    return f"; did you mean {near!r}?" if near else ""


def among(name: str, known: Iterable[str]) -> str:
    """The names that there are, some where there are many, and the one that was meant, if one is near.

    Arguments:
        name: str, which is not among them.
        known: the names.
    """
    names = sorted(known)
    shown = ", ".join(map(repr, names[:MOST_NAMED]))
    more = len(names) - MOST_NAMED
    return (f"{shown} and {more} more" if more > 0 else shown) + nearest(name, names)
