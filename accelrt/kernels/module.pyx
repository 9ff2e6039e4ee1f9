"""Modules: code that is loaded onto a device, with its kernels; kernels of the host device by pointer; and sleep."""
import os
import sys
from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.core import files
from accelrt.core.integers cimport checked_address_int, checked_int
from accelrt.core.threads cimport sleep_ns
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport go_relaxed, restore_mode
from accelrt.driver.registry import driver_name
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport LOG_BYTES
from accelrt.kernels import host_functions as plain
from accelrt.kernels.elf_image import check_shared_object
from accelrt.kernels.image import MOST_BYTES as _MOST_BYTES, unsealed
from accelrt.kernels.kernel cimport Kernel, Loaded, make_kernel
from accelrt.kernels.signature import parse_signature
from accelrt.runtime.lifetimes cimport drain
from accelrt.status cimport INVALID_IMAGE, NOT_FOUND, raise_status, refuse_copy, refuse_unmade, status_text
from accelrt.streams.stream cimport Stream, stream_of


# stub: _Image = str | os.PathLike[str] | bytes | bytearray | memoryview | SupportsBytes
# stub: PTX: bytes
# stub: def _sleep(cycles: int, stream: Stream | int | None = None) -> None: ...

# --- module -----------------------------------------------------------------------------------------------------------
# Modules: code that is loaded onto a device, with the kernels in it; and kernels of the host device by pointer.

cdef enum:
    ELF_HEADER = 64  # bytes
    NO_BINARY_FOR_GPU = 209        # codes of module_load
    INVALID_PTX = 218
    UNSUPPORTED_PTX_VERSION = 222
    INVALID_SOURCE = 300

# What NOT_FOUND means of a kernel.
cdef str NOT_HERE = (
    "the module has no kernel of that name; C++ mangles names, so declare it extern \"C\", or compile it with the name as a "
    "name expression"
)
cdef str NOT_HERE_ON_HOST = (
    "the module has no kernel of that name; declare one in CUDA C extern \"C\", or compile it with the name as a name "
    "expression; one in C is exported beside its {0}_parameters (accelrt/kernels/DESIGN.md)"
)


cdef inline bint is_of_image(int code) noexcept nogil:
    # Whether the image is at fault: to load it again costs nothing but time.
    return code in (INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION, INVALID_SOURCE)


cdef str meaning_of(int code, const char* log):
    # With what the driver's compiler, or the loader of shared objects, said; else the code's own text will do.
    said = log.decode(errors="replace").strip()
    if not said:
        return ""
    return f"{status_text(code).decode()}; the driver said:\n" + "\n".join([f"    {line}" for line in said.splitlines()])


cdef Loaded load(int ordinal, bytes image, str what):
    # Refused beside a capture, which it would break, unless the caller is relaxed.
    cdef Loaded made = Loaded.__new__(Loaded)
    cdef const char* data = image
    cdef uintptr_t module = 0
    cdef char[LOG_BYTES] log
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    log[0] = 0
    if code == 0:
        with nogil:
            code = registry.active().module_load(ordinal, data, &module)
            if is_of_image(code):
                registry.active().module_log(ordinal, data, log)
        restore_mode(registry.active(), mode)
    if code:
        raise_status(code, "module_load", ("device", ordinal, "image", what), meaning_of(code, log))
    made.device_index = ordinal
    made.handle = module
    return made


cdef uintptr_t function_of(Loaded loaded, str name, str meaning) except 0:
    cdef uintptr_t function = 0
    cdef bytes encoded = name.encode()
    cdef const char* text = encoded
    cdef int code
    if b"\0" in encoded or not encoded:
        raise ValueError(f"name is {name!r}; pass the name of a kernel")
    with nogil:
        code = registry.active().module_function(loaded.handle, text, &function)
    if code:
        raise_status(code, "module_function", ("name", name), meaning if code == NOT_FOUND else "")
    return function


cdef tuple find_global(Loaded loaded, str name, str called):
    # (address, bytes) of a variable.
    cdef bytes encoded = name.encode()
    cdef const char* text = encoded
    cdef uintptr_t address = 0
    cdef size_t size = 0
    cdef int code
    with nogil:
        code = registry.active().module_global(loaded.handle, text, &address, &size)
    if code:
        raise_status(code, "module_global", ("name", called))
    return address, size


def check_image(bytes data) -> None:
    """Raises ValueError where an image in the ELF format, a cubin or a shared object, is shorter than it says, is not what
    accelrt compiled any more, or has tables that the host's dynamic linker would follow out of it."""
    if data[:4] != b"\x7fELF":
        if not data:
            raise ValueError("the image is empty")
        return
    if len(data) >= ELF_HEADER:
        headers, each = int.from_bytes(data[40:48], "little"), int.from_bytes(data[58:60], "little")
        whole = headers + each * int.from_bytes(data[60:62], "little")
        if headers and whole <= len(data):
            whole_ = unsealed(data)
            if whole_ is data and driver_name() != "cuda":
                check_shared_object(data)
            return
        text = f"of which {whole} should be there" if headers else "without section headers, which tell its length"
    else:
        text = "too few for its header"
    raise ValueError(f"the image is an ELF file of {len(data)} bytes, {text}; it is damaged: compile it again")


cdef tuple read_image(object image):
    # (what the driver takes, what an error calls it) of a path, bytes, or what a compiler made: an object whose bytes()
    # are the image.
    cdef bytes data
    if isinstance(image, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(image))
        what = f"file {os.fsdecode(path)}"
        data = files.read(path, _MOST_BYTES)
        check_image(data)
        if driver_name() != "cuda" and data[:4] == b"\x7fELF":
            return os.fsencode(path), what  # so that libraries beside it, and debuggers, find it
        return data, what
    if not isinstance(image, (bytes, bytearray, memoryview)) and not hasattr(image, "__bytes__"):
        raise TypeError(f"image is of type {type(image).__name__}; pass a path, bytes, or what compile_image returns")
    data = bytes(image)
    check_image(data)
    return data, f"{len(data)} bytes"


cdef class Module:
    """Module(image, device=None)\n--\n\n\
    Code that is loaded onto a device.

        with accelrt.Module("kernels.cubin") as module:
            saxpy = module.function("saxpy", "float a, const float* x, float* y, int n")

    Arguments:
        image: str or os.PathLike, a file; or bytes; or what compile_image returns.  On a GPU it is PTX, a cubin or a
            fatbin; on the host device a shared object (accelrt/kernels/DESIGN.md says what it exports).
        device: int, "cuda:1", an object with an index; None is the current device.
    Raises:
        CudaError: the driver cannot load it.
        OSError: the file cannot be read.
        ValueError, TypeError: the image is damaged, or is none.

    The code stays loaded as long as the module, one of its kernels, a graph or a launch under way needs it.
    """

    cdef Loaded loaded               # None before __init__ and after unload
    cdef readonly int device_index
    cdef dict names                  # what a compiler calls them -> what the driver does
    cdef object __weakref__

    def __init__(self, image: _Image, device: DeviceArgument | None = None) -> None:
        if self.loaded is not None:
            raise RuntimeError("a Module is initialised once")
        ordinal = ordinal_of(device)
        data, what = read_image(image)
        loaded = load(ordinal, data, what)
        self.names = dict(getattr(image, "names", None) or {})
        self.device_index = ordinal
        self.loaded = loaded

    @classmethod
    def load(cls, image: _Image, device: DeviceArgument | None = None) -> Module:
        """Module(image, device), by the name that other libraries have for it."""
        return cls(image, device)

    def __reduce__(self):
        refuse_copy(self, "it is loaded in this process; load the image again")

    cdef Loaded held(self):
        if self.loaded is None:
            if self.names is None:
                refuse_unmade(self)
            raise ValueError("this Module was unloaded; load the image again")
        return self.loaded

    def function(self, str name, signature: str | Iterable[str] | None = None) -> Kernel:
        """A kernel of the module.

        Arguments:
            name: str, as the driver knows it, or a name expression that it was compiled with.
            signature: str, "const float* x, float* y, int n", or an iterable of one text for each parameter (see
                parse_signature).  It decides how arguments are converted, is checked against what the driver tells of
                the parameters, and tells the race detector which memory is read only.  Without one, numbers are laid
                out by the parameters' sizes, and all memory counts as written.
        Returns:
            Kernel.
        Raises:
            CudaError: the module has no such kernel.
            ValueError, TypeError: the signature does not fit the kernel, or is none; or the module was unloaded.
        """
        cdef Loaded loaded = self.held()
        found = str(self.names.get(name, name))
        meaning = NOT_HERE if driver_name() == "cuda" else NOT_HERE_ON_HOST.format(found)
        return make_kernel(loaded, function_of(loaded, found, meaning), self.device_index, name, signature)

    def global_address(self, str name) -> tuple[int, int]:
        """Where a __device__ or __constant__ variable of the module lies (cuModuleGetGlobal).

        Returns:
            (address as int, bytes).
        Raises:
            CudaError: the module has no such variable.
        """
        cdef Loaded loaded = self.held()
        return find_global(loaded, str(self.names.get(name, name)), name)

    def unload(self) -> None:
        """Gives the module up: its kernels go on to work, and the code goes when the last of them, and what was
        launched and captured of it, is gone.  Unloading it again does nothing."""
        self.loaded = None
        drain()

    def __enter__(self) -> Module:
        self.held()
        return self

    def __exit__(self, *exc) -> None:
        self.unload()

    def __repr__(self):
        if self.loaded is None:
            return "<accelrt.Module not loaded>"
        return f"<accelrt.Module on device {self.device_index}, {self.loaded.handle:#x}>"


# --- kernels of the host device by pointer -----------------------------------------------------------------

cdef uintptr_t address_of(object function) except 0:
    # An address as int, or a function of ctypes, cffi, numba's cfunc, or Cython (a capsule of __pyx_capi__).
    cdef object address = None
    ctypes, cffi = sys.modules.get("ctypes"), sys.modules.get("_cffi_backend")
    if PyCapsule_CheckExact(function):
        return <uintptr_t>PyCapsule_GetPointer(function, PyCapsule_GetName(function))
    if ctypes is not None and isinstance(function, ctypes._CFuncPtr):
        address = ctypes.cast(function, ctypes.c_void_p).value
    elif cffi is not None and isinstance(function, cffi._CDataBase):
        address = int(cffi.cast(cffi.new_primitive_type("uintptr_t"), function))
    elif isinstance(getattr(function, "address", None), int):  # numba's
        address = function.address
    else:
        address = checked_address_int(function, "function")
    if not address:
        raise ValueError("function is a NULL pointer; pass the address of a function")
    return <uintptr_t>address


cdef Loaded register(object function, uintptr_t address, str name, object signature, int ordinal):
    # A module of one function.
    cdef list parsed = parse_signature(signature)
    cdef Loaded loaded = Loaded.__new__(Loaded)
    cdef uintptr_t module = 0
    cdef bytes text = name.encode()
    cdef const char* encoded = text
    cdef size_t* sizes = <size_t*>calloc(len(parsed) + 1, sizeof(size_t))
    cdef int code
    if sizes == NULL:
        raise MemoryError("no host memory for a kernel's parameters")
    for index, (_, size, _) in enumerate(parsed):
        sizes[index] = size
    code = registry.active().module_register(ordinal, address, encoded, len(parsed), sizes, &module)
    free(sizes)
    if code:
        raise_status(code, "module_register", ("device", ordinal, "function", address, "signature", signature),
                     "" if driver_name() == "host" else "a function of the host is a kernel of the host device only")
    loaded.device_index = ordinal
    loaded.handle = module
    loaded.owner = function
    return loaded


cdef object wrap_plain(object function, uintptr_t address, str name, object signature, int ordinal):
    # A kernel that calls a function of C, which knows nothing of blocks: code of its own for each function.
    cdef uintptr_t target
    cdef Loaded loaded
    called, image = plain.compile_call(name, signature)
    loaded = load(ordinal, bytes(image), f"a call of {name}")
    target, _ = find_global(loaded, plain.TARGET, plain.TARGET)
    (<uintptr_t*>target)[0] = address
    loaded.owner = function
    return make_kernel(loaded, function_of(loaded, called, ""), ordinal, name, signature)


def host_kernel(
    function: object, signature: str | Iterable[str], *, str name=None, device: DeviceArgument | None = None,
) -> Kernel:
    """A kernel of the host device that is a C function of this process, or the text of one.

        @numba.cfunc(types.void(types.voidptr, types.CPointer(types.voidptr)))
        def saxpy(where, arguments): ...
        kernel = accelrt.host_kernel(saxpy, "float, const float*, float*, int")

    Arguments:
        function: void (*)(const accelrt_block *where, void **arguments), called once for each block (the declaration is
            in accelrt/kernels/DESIGN.md): an address as int, a function of ctypes or cffi, numba's cfunc, or a capsule
            of a Cython module's __pyx_capi__.  It is kept alive as long as a launch or a graph needs it.  One whose types
            say that it takes the signature's parameters instead is called with their values, once for each block, too.
            An address tells no types: it has to be of a function that takes a block.
            Or a str, the text of such a function in C or C++, which has CUDA's device functions.
        signature: the parameters; see Module.function.  It has to be given, since nothing else tells their sizes.
        name: str, for errors and graphs; None is the function's own.  Of a text, which of its functions it is.
        device: as of Module.
    Returns:
        Kernel.
    Raises:
        NotSupportedError: the device is no host device.
        CompileError, CompilerNotFoundError: of a text, and of a function that takes the signature's parameters.
        ValueError, TypeError: the function is none, its types fit neither way or are not known, or the signature.

    It runs on a thread of the device's, and may not call the driver.  A function of ctypes that runs Python takes the
    GIL, and is not called after the interpreter's exit began.
    """
    cdef uintptr_t address = 0
    cdef Loaded loaded
    cdef int ordinal
    if signature is None:
        raise TypeError("signature is None; a host kernel needs one, such as 'const float*, float*, int'")
    if not isinstance(signature, str):
        signature = list(signature)
    count = len(parse_signature(signature))
    if isinstance(function, str):
        ordinal = ordinal_of(device)
        called, image = plain.compile_text(function, signature, name)
        loaded = load(ordinal, bytes(image), f"the text of {called}")
        return make_kernel(loaded, function_of(loaded, called, ""), ordinal, called, signature)
    address = address_of(function)
    for_blocks = plain.is_called_for_blocks(function, count)
    ordinal = ordinal_of(device)
    if name is None:
        name = str(getattr(function, "__name__", None) or f"function at {address:#x}")
    if not for_blocks:
        return wrap_plain(function, address, name, signature, ordinal)
    loaded = register(function, address, name, signature, ordinal)
    return make_kernel(loaded, function_of(loaded, name, ""), ordinal, name, signature)


# --- sleep ------------------------------------------------------------------------------------------------------------
# sleep: a kernel that takes a given time.

PTX = b"""
.version 6.4
.target sm_50
.address_size 64

.visible .entry accelrt_sleep (.param .u64 given)
{
    .reg .pred %more;
    .reg .u64 %cycles, %start, %now;
    ld.param.u64 %cycles, [given];
    mov.u64 %start, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %cycles;
    @%more bra again;
    ret;
}
"""
cdef dict kernels = {}  # by ordinal


cdef void sleep_block(const void* where, void** arguments) noexcept nogil:
    sleep_ns((<int64_t*>arguments[0])[0])


def forget_kernels() -> None:
    """Unloads what sleep loaded; it is loaded again when it is needed."""
    kernels.clear()


cdef Kernel kernel_for(int ordinal):
    made = kernels.get(ordinal)
    if made is None:
        if driver_name() == "cuda":
            made = Module(PTX, ordinal).function("accelrt_sleep", "int64_t cycles")
        else:
            made = host_kernel(<size_t>&sleep_block, "int64_t cycles", name="accelrt_sleep", device=ordinal)
        made = kernels.setdefault(ordinal, made)
    return made


def sleep(cycles: int, stream: Stream | int | None = None) -> None:
    """Puts a kernel into a stream that takes so many cycles of the device's clock (torch.cuda._sleep).

    Arguments:
        cycles: int, of a multiprocessor's clock, which runs at 1 to 2 GHz; on the host device a cycle is a nanosecond.
        stream: Stream, handle as int, or None for the current stream of the current device.
    Raises:
        ValueError, TypeError: cycles is negative or no int, or the stream is none.
        CudaError: the driver refused.
    """
    cdef Stream chosen
    number = checked_int(cycles, "cycles", 0, (1 << 63) - 1, "cycles of the device's clock as int")
    chosen = stream_of(stream, ordinal_of(None))
    kernel_for(chosen.device_index).launch(1, 1, (number,), stream=chosen)


_sleep = sleep  # by torch.cuda's name
