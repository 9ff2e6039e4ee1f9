"""GPUDirect Storage: files read into and written from device memory, by torch.cuda.gds's names.

    file = accelrt.gds.GdsFile("weights.bin", os.O_RDONLY)
    file.load_storage(weights)      # a Buffer or an Array, or another library's array

On a GPU it is NVIDIA's cuFile, through cuda.bindings; libcufile comes with the CUDA toolkit and with the PyPI
package nvidia-cufile.  Whether bytes go straight from the disk to the device, or through the host's memory,
depends on the file system and on the nvidia-fs driver.  On the host device these are plain reads and writes.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from accelrt.arrays.array import Array, Buffer
from accelrt.arrays.copy import MemoryUse, use
from accelrt.arrays.exchange import asarray
from accelrt.core.arguments import checked_number
from accelrt.core.process import Descriptor, Owned, open_descriptor
from accelrt.devices.device import device
from accelrt.errors import (
    ArgumentTypeError,
    CaptureError,
    CudaError,
    ForkedError,
    UnregisteredFileError,
    not_supported,
    refuse_copy,
)
from accelrt.graphs.graph import is_current_stream_capturing
from accelrt.runtime import init
from accelrt.streams.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, Self

__all__ = ["GdsFile", "gds_deregister_buffer", "gds_register_buffer"]

OPAQUE_FD = 1  # CUfileFileHandleType
RELAXED_ADVICE = "allow_compat_mode in cufile.json lets files pass through the host's memory"


class Description(ctypes.Structure):
    """CUfileDescr_t: a file as cuFile is told of it."""

    _fields_ = (("kind", ctypes.c_int), ("fd", ctypes.c_ulonglong), ("fs_ops", ctypes.c_void_p))


def library() -> Any:
    """cuda.bindings.cufile, with libcufile loaded.

    Raises:
        NotSupportedError: there is none; the text says what brings it.
    """
    try:
        module = importlib.import_module("cuda.bindings.cufile")
        getattr(module, "get_version", module.use_count)()
    except Exception as error:  # a missing library, or one that an old cuda-bindings calls otherwise
        raise not_supported(
            f"GPUDirect Storage needs libcufile, which was not found ({str(error).splitlines()[0]}); it "
            "comes with the CUDA toolkit and the PyPI package nvidia-cufile (nvidia-cufile-cu12 for CUDA 12)",
            "cuFile",
        ) from error
    return module


def on_host() -> bool:
    init.init()
    return init.chosen_driver() != "cuda"


def ask(call: str, function: Callable[..., Any], *values: Any) -> Any:
    """Returns what a function of cuFile answers; its errors as a CudaError."""
    try:
        return function(*values)
    except Exception as error:
        status = getattr(error, "status", 999)
        shown = ", ".join(hex(one) if isinstance(one, int) and one > 1 << 32 else repr(one) for one in values)
        raise CudaError(
            f"{call}({shown}) failed: {error}; {RELAXED_ADVICE}",
            int(status),
            str(getattr(status, "name", status)),
            call,
        ) from error


def gds_register_buffer(s: Any) -> None:
    """Registers memory with cuFile, so that later reads and writes of it are faster (cuFileBufRegister).

    Arguments:
        s: Buffer, contiguous Array, or another library's array on a device.  It stays registered until
            gds_deregister_buffer; deregister it before its memory is freed.
    Raises:
        TypeError, ValueError: it is no contiguous memory of a device.
        CudaError: cuFile refused; it may do so where the memory spans several pages of virtual memory, which
            are several allocations of the driver: expandable_segments:False has each in one.
        NotSupportedError: libcufile is not installed.
    """
    view = reach(s, "s", False)
    if not on_host():
        with device(view.device_index):
            ask("cuFileBufRegister", library().buf_register, view.ptr, view.nbytes, 0)


def gds_deregister_buffer(s: Any) -> None:
    """Ends what gds_register_buffer began (cuFileBufDeregister).

    Arguments, Raises: as gds_register_buffer.
    """
    view = reach(s, "s", False)
    if not on_host():
        with device(view.device_index):
            ask("cuFileBufDeregister", library().buf_deregister, view.ptr)


def reach(memory: Any, name: str, writable: bool) -> Array:
    """Contiguous memory of a device as an Array, once its stream and the current one have done their work.

    Arguments:
        writable: bool, whether it is to be written.
    """
    if not isinstance(memory, (Buffer, Array)) and not hasattr(memory, "__cuda_array_interface__"):
        raise ArgumentTypeError(
            f"{name} is {memory!r} of type {type(memory).__name__}; pass a Buffer, an Array, or an array "
            "with __cuda_array_interface__"
        )
    view = memory if isinstance(memory, Array) else asarray(memory, copy=False)
    if view.device_index < 0 or not view.is_contiguous:
        where = "host memory" if view.device_index < 0 else f"strides {view.strides}"
        raise ArgumentTypeError(f"{name} is an Array of {where}; pass a contiguous one on a device")
    if writable and view.readonly:
        raise ValueError(f"{name} is a read-only Array; pass one that can be written")
    with current_stream(view.device_index) as now:
        if is_current_stream_capturing():
            raise CaptureError(
                "files cannot be read or written in a capture: cuFile's work is not a stream's; do it before",
                900,
                "STREAM_CAPTURE_UNSUPPORTED",
                "cuFile",
            )
    if view.nbytes:
        view.__dlpack__(stream=-1)  # refuses memory that sleeps or was freed
    now.synchronize()
    if view.stream is not None and view.stream != now:
        view.stream.synchronize()
    use(view, stream="host", mode="w" if writable else "r")
    return view


class GdsFile:
    """A file that is read into device memory and written from it (cuFile; torch.cuda.gds.GdsFile).

    Arguments:
        filename: str or path.
        flags: int, of os.open: os.O_CREAT | os.O_RDWR, say.  On a GPU os.O_DIRECT is added, as in torch; the
            file system has to take it.
    Raises:
        OSError: the file cannot be opened so.
        NotSupportedError: libcufile is not installed.
        CudaError: cuFile refused the file.

    A file is closed by close(), at the end of a with statement, or when the object dies.  Reads and writes
    are no work of a stream: they wait for the current stream and the memory's, and are done when the call
    returns.

    Attributes:
        filename, flags: as given.
        fd: int, the file descriptor; -1 once it is closed.
        handle: int, cuFile's; None while the file is not registered with it.
    """

    _file: Owned[Descriptor] | None = None
    _handle: Owned[int] | None = None
    _pid: int = -1

    def __init__(self, filename: str | os.PathLike[str], flags: int) -> None:
        self._library = None if on_host() else library()  # first: no file is made where it is missing
        direct = 0 if self._library is None else os.O_DIRECT
        self.filename = filename
        self.flags = flags
        self._pid = os.getpid()
        self._file = Owned(open_descriptor, (filename, flags | direct), Descriptor.close)
        try:
            self.register_handle()
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns a file; open it where it is needed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # What it owns goes back by itself, but the handle has to go before the descriptor does.
        with suppress(Exception):  # the interpreter may be ending, and cuFile be gone
            self.close()

    @property
    def fd(self) -> int:
        """The file descriptor; -1 once it is closed."""
        file = None if self._file is None else self._file.value
        return -1 if file is None else file.fileno()

    @property
    def handle(self) -> int | None:
        """cuFile's handle; None while the file is not registered with it."""
        return None if self._handle is None else self._handle.value

    def __repr__(self) -> str:
        state = "closed" if self.fd < 0 else f"fd {self.fd}"
        return f"<accelrt.gds.GdsFile {getattr(self, 'filename', '')!r}, {state}>"

    def close(self) -> None:
        """Deregisters and closes the file; does nothing where that was done before.

        Beside a read or a write by another thread it returns at once, and the file is closed once that ends.

        Raises:
            CudaError: cuFile refused to deregister it.
        """
        is_mine = self._pid == os.getpid()
        if not is_mine:
            self._handle = None  # the parent's
        try:
            if is_mine and self.handle is not None:
                self.deregister_handle()
        finally:
            # Still registered where that was interrupted: then close() may be called again.
            if self._file is not None and not (is_mine and self.handle is not None):
                self._file.close()

    def register_handle(self) -> None:
        """Registers the file with cuFile (cuFileHandleRegister); a file is registered when it is opened.

        Raises:
            RuntimeError, which is an AssertionError too: it is registered, or closed.
        """
        if self.handle is not None:
            raise UnregisteredFileError(f"{self!r} is registered already; call deregister_handle() first")
        if self.fd < 0:
            raise UnregisteredFileError(f"{self!r} cannot be registered; open another GdsFile")
        library, file, number = self._library, self._file, self.fd
        if library is None:
            self._handle = Owned(int, (number,), bool)  # nothing to give back
            return
        description = Description(OPAQUE_FD, number, None)

        def register(address: int) -> Owned[int]:
            return Owned(library.handle_register, (address,), library.handle_deregister, keep=file)

        self._handle = ask("cuFileHandleRegister", register, ctypes.addressof(description))

    def deregister_handle(self) -> None:
        """Ends the registration with cuFile (cuFileHandleDeregister); the file stays open.

        Raises:
            RuntimeError, which is an AssertionError too: the file is not registered.
            CudaError: cuFile refused.
        """
        owned, handle = self._registered("be deregistered")
        ask("cuFileHandleDeregister", lambda _: owned.close(), handle)

    def load_storage(self, storage: Any, offset: int = 0) -> None:
        """Fills memory from the file (cuFileRead).

        Arguments:
            storage: Buffer, contiguous Array, or another library's array on a device; all of it is filled.
            offset: int, where in the file they begin.
        Raises:
            EOFError: the file ends before; what there was is in the memory.
            CudaError, OSError: the read failed.
            TypeError, ValueError: storage is no contiguous memory of a device that can be written.
            CaptureError: the current stream is capturing.
            RuntimeError, which is an AssertionError too: the file is closed or not registered.
        """
        self._transfer("cuFileRead", storage, offset, True)

    def save_storage(self, storage: Any, offset: int = 0) -> None:
        """Writes memory to the file (cuFileWrite).

        Arguments, Raises: as load_storage.
        """
        self._transfer("cuFileWrite", storage, offset, False)

    def _registered(self, use: str) -> tuple[Owned[int], int]:
        """Returns the owner of cuFile's handle, and the handle."""
        if self._pid != os.getpid():
            raise ForkedError(
                f"{self!r} was opened before a fork and cannot {use} in the child; open it there"
            )
        owned = self._handle
        handle = None if owned is None else owned.value
        if owned is None or handle is None:
            raise self._refusal(use)
        return owned, handle

    def _refusal(self, use: str) -> UnregisteredFileError:
        return UnregisteredFileError(f"{self!r} is not registered and cannot {use}; call register_handle()")

    def _transfer(self, call: str, storage: Any, offset: int, load: bool) -> None:
        use = "load data" if load else "save data"
        self._registered(use)
        offset = checked_number(offset, "offset", 0)
        view = reach(storage, "storage", load)
        done, nbytes = 0, view.nbytes
        owned, _ = self._registered(use)  # another thread may have closed it while this one waited
        file = self._file
        assert file is not None
        with (
            device(view.device_index),
            MemoryUse(call, [view]),
            file.hold() as opened,
            owned.hold() as handle,
        ):
            if opened is None or handle is None:
                raise self._refusal(use)
            while done < nbytes:
                moved = self._move(call, handle, view.ptr, nbytes - done, offset, done, load)
                if moved <= 0:
                    raise EOFError(
                        f"{self!r}: {done} of {nbytes} bytes were moved from offset {offset}; it ends there"
                    )
                done += moved

    def _move(
        self, call: str, handle: int, address: int, left: int, offset: int, done: int, load: bool
    ) -> int:
        if self._library is None:
            bytes_left = [(ctypes.c_char * left).from_address(address + done)]
            move: Any = os.preadv if load else os.pwritev
            return int(move(handle, bytes_left, offset + done))
        function = self._library.read if load else self._library.write
        moved = int(ask(call, function, handle, address, left, offset + done, done))
        if moved < 0:
            raise OSError(-moved, f"{call} of {left} bytes at offset {offset + done} failed", self.filename)
        return moved
