"""Marks and ranges in the timeline of a profiler (NVIDIA Tools Extension), with torch.cuda.nvtx's names.

    accelrt.nvtx.mark("batch read")
    with accelrt.nvtx.range("step {}", number):
        ...

The work is the `nvtx` package's (the extra accelrt[nvtx]).  Whether a tool listens is asked once, at the first call:
NVTX itself looks for one only then, where the environment names it (NVTX_INJECTION64_PATH, which nsys and ncu set).
Where none listens, or the package is not installed, a call returns at once, and formats no text.
"""
cimport cython
import functools
import importlib
import os
import threading
import warnings

from accelrt.status cimport refuse_copy, refuse_unmade

__all__ = ["Domain", "get_domain", "is_listening", "mark", "range", "range_end", "range_pop", "range_push", "range_start"]

# stub: _F = TypeVar("_F", bound=Callable[..., object])
# stub: class _Range(Protocol):
# stub:     def __enter__(self) -> None: ...
# stub:     def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> bool: ...  # no-cython-lint
# stub:     def __call__(self, function: _F, /) -> _F: ...

cdef enum:
    NO_TRACKING = -2  # what NVTX answers for a depth where no tool listens (NVTX_NO_PUSH_POP_TRACKING)

cdef bint is_missing = False  # the nvtx package is not installed
cdef bint is_silent = False   # no tool listens; final once it is True
cdef Domain default = None    # made by the first call where one does
cdef dict domains = {}        # name -> Domain


cdef bint silent() except -1:
    # Cheap but for the first call.
    return is_silent or (default is None and find_tool())


cdef bint find_tool() except -1:
    # Sets default or is_silent; answers the latter.
    global is_silent, default
    backend = find_backend("")
    if backend is None:
        is_silent = True
        if is_missing:
            tell_of_missing_package()
    else:
        made = new_domain("", backend)
        with cython.critical_section(domains):
            if default is None:  # no other thread was faster; it stays for good
                default = made
    return is_silent


cdef object find_backend(str name):
    # The nvtx package's domain; None where no tool listens to it.
    global is_missing
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError:
        is_missing = True
        return None
    if not nvtx.enabled():  # NVTX_DISABLE
        return None
    found = nvtx.get_domain(name or None)
    return None if type(found).__name__ == "DummyDomain" else found


cdef int tell_of_missing_package() except -1:
    tool = os.environ.get("NVTX_INJECTION64_PATH")
    if tool:
        warnings.warn(
            f"a profiler listens to NVTX ({tool}), but the nvtx package is not installed and it hears nothing of "
            "accelrt.nvtx; install accelrt[nvtx]", RuntimeWarning, stacklevel=2,
        )
    return 0


cdef Domain new_domain(str name, object backend):
    cdef Domain made = Domain.__new__(Domain)
    made.name = name
    made.backend = backend
    made.depths = None if backend is None else threading.local()
    made.made = True
    return made


cdef str text_of(object msg):
    return msg if type(msg) is str else str(msg)


cdef class Domain:
    """Domain(*args)\n--\n\n\
    Marks and ranges under a name of their own, which a profiler can show or leave out as a whole; made by get_domain.

    Attributes:
        name: str.
    """

    cdef readonly str name
    cdef object backend  # the nvtx package's; None where no tool listens
    cdef object depths   # of the calling thread's open ranges
    cdef bint made
    cdef object __weakref__

    def __init__(self, *_: object) -> None:
        if not self.made:
            raise TypeError("a Domain is made by accelrt.nvtx.get_domain(name)")

    def __reduce__(self):
        refuse_copy(self, "it stands for a domain of this process; call get_domain(name) there")

    def __repr__(self):
        return f"<accelrt.nvtx.Domain {self.name!r}>"

    def mark(
        self, msg: str, color: str | int | None = None, category: str | int | None = None,
        payload: float | None = None,
    ) -> None:
        """Marks a moment.

        Arguments:
            msg: str.
            color: a name such as "blue", 0xRRGGBB, or None.
            category: str or int, or None.
            payload: int or float to show with it, or None.
        """
        if self.backend is not None:
            self.backend.mark(message=text_of(msg), color=color, category=category, payload=payload)

    def range_push(
        self, msg: str, color: str | int | None = None, category: str | int | None = None,
        payload: float | None = None,
    ) -> int:
        """Begins a range inside of the calling thread's others.

        Arguments: as mark.
        Returns:
            int, how many were open before it; -2 where no tool listens.
        """
        if self.backend is None:
            return NO_TRACKING
        depth = getattr(self.depths, "open", 0)
        self.backend.push_range(message=text_of(msg), color=color, category=category, payload=payload)
        self.depths.open = depth + 1
        return depth

    def range_pop(self) -> int:
        """Ends the range that the calling thread began last.

        Returns:
            int, how many are left open; -1 where none was open, -2 where no tool listens.
        """
        if self.backend is None:
            return NO_TRACKING
        depth = getattr(self.depths, "open", 0) - 1
        self.backend.pop_range()
        self.depths.open = max(depth, 0)
        return depth

    def range_start(
        self, msg: str, color: str | int | None = None, category: str | int | None = None,
        payload: float | None = None,
    ) -> int:
        """Begins a range that any thread may end.

        Arguments: as mark.
        Returns:
            int, for range_end; 0 where no tool listens.
        """
        if self.backend is None:
            return 0
        return self.backend.start_range(message=text_of(msg), color=color, category=category, payload=payload)

    def range_end(self, range_id: int) -> None:
        """Ends a range that range_start began.

        Arguments:
            range_id: int, what range_start returned.
        """
        if self.backend is not None:
            self.backend.end_range(range_id)

    def range(self, msg: str, *args: object, **kwargs: object) -> _Range:
        """Returns a context, or a decorator of functions, that is a range.

        Arguments: as accelrt.nvtx.range.
        """
        return nothing if self.backend is None else new_range(self, msg, args, kwargs)


cdef class Range:
    """A context, or a decorator of functions, that pushes a range and pops it; made by range()."""

    cdef Domain domain
    cdef str text

    def __enter__(self):
        if self.domain is None:
            refuse_unmade(self)
        self.domain.range_push(self.text)

    def __exit__(self, kind, error, trace):
        if self.domain is None:
            refuse_unmade(self)
        self.domain.range_pop()
        return False

    def __call__(self, function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return inner

    def __reduce__(self):
        refuse_copy(self, "it belongs to a domain of this process; call accelrt.nvtx.range there")


cdef class NoRange:
    """The range that range() returns where no tool listens."""

    def __enter__(self):
        return None

    def __exit__(self, kind, error, trace):
        return False

    def __call__(self, function):
        return function

    def __reduce__(self):
        refuse_copy(self, "call accelrt.nvtx.range there")


cdef NoRange nothing = NoRange()


cdef Range new_range(Domain domain, object msg, tuple args, dict kwargs):
    cdef Range made = Range.__new__(Range)
    made.domain = domain
    made.text = msg.format(*args, **kwargs) if args or kwargs else text_of(msg)
    return made


def is_listening() -> bool:
    """Tells whether a profiler listens to what this module tells."""
    return not silent()


def get_domain(str name not None) -> Domain:
    """Returns a domain: a name under which a profiler files marks and ranges.

    Arguments:
        name: str, such as the name of your library.
    Returns:
        Domain, the same object for the same name.
    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError("name is empty; a domain has a name, and marks without one are accelrt.nvtx.mark's")
    found = domains.get(name)
    if found is None:
        found = domains.setdefault(name, new_domain(name, None if silent() else find_backend(name)))
    return found


def mark(msg: str) -> None:
    """Marks a moment.

    Arguments:
        msg: str.
    """
    if not silent():
        default.mark(msg)


def range_push(msg: str) -> int:
    """Begins a range inside of the calling thread's others.

    Arguments:
        msg: str.
    Returns:
        int, how many were open before it; -2 where no tool listens.
    """
    return NO_TRACKING if silent() else default.range_push(msg)


def range_pop() -> int:
    """Ends the range that the calling thread began last.

    Returns:
        int, how many are left open; -1 where none was open, -2 where no tool listens.
    """
    return NO_TRACKING if silent() else default.range_pop()


def range_start(msg: str) -> int:
    """Begins a range that any thread may end.

    Arguments:
        msg: str.
    Returns:
        int, for range_end; 0 where no tool listens.
    """
    return 0 if silent() else default.range_start(msg)


def range_end(range_id: int) -> None:
    """Ends a range that range_start began.

    Arguments:
        range_id: int, what range_start returned.
    """
    if not silent():
        default.range_end(range_id)


def range(msg: str, *args: object, **kwargs: object) -> _Range:
    """Returns a context, or a decorator of functions, that is a range.

        with accelrt.nvtx.range("step {}", number):
            ...

    Arguments:
        msg: str.
        args, kwargs: for msg.format, which is called where there are any and a tool listens.
    Returns:
        an object that may be entered any number of times, on any thread.
    """
    return nothing if silent() else new_range(default, msg, args, kwargs)
