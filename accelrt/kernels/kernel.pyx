# cython: embedsignature=False
"""Kernel: a function that a device runs, and its launches.

A launch packs the arguments on the C stack, tells the allocators of memory that belongs to other streams, and calls the
driver without the GIL, in a use of the arguments (accelrt/uses).  What is rare leaves by functions whose names end in
_slow or is behind a flag.
"""
from collections import namedtuple

cimport cython
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport UINTPTR_MAX, uintptr_t
from libc.string cimport memset

from accelrt.arrays.operand cimport uses_owner
from accelrt.core.integers cimport checked_int
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC
from accelrt.kernels.packing cimport (
    Packed, announce_memory, follow_producers, keep_memory, look_again, make_parameters, note_memory, pack, refuse_asleep,
)
from accelrt.allocator.private.suspended cimport has_suspended_pools
from accelrt.runtime import init
from accelrt.runtime.capture_record cimport OTHER_HOST, Record, any_capture, keep_side, record_on
from accelrt.runtime.release_queue cimport MODULE, dispose, keep_until_passed
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport INVALID_VALUE, raise_status, refuse_copy, refuse_unmade
from accelrt.status import explain_faults
from accelrt.streams.current cimport current_of, stream_for
from accelrt.streams.stream cimport Stream
from accelrt.uses.access cimport Access, begin_use, end_use

cdef enum:
    DYNAMIC_SHARED = 8    # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    PERMITTED = 48 << 10  # bytes of shared memory that a block has without being permitted more
    RECENT = 4            # names of launches that an error tells

# CUfunction_attribute, by number from 0 (CUDA driver API, "Data types used by CUDA driver").
KernelAttributes = namedtuple("KernelAttributes", (
    "max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs", "ptx_version",
    "binary_version", "cache_mode_ca", "max_dynamic_shared_size_bytes",
))

cdef struct Recent:
    PyObject* name   # a str, and a reference to it
    int device
    uintptr_t stream

# What was launched last; guarded by the GIL.
cdef Recent[RECENT] recent
cdef unsigned int launches = 0


cdef inline void note_name(str name, Stream stream) noexcept:
    cdef Recent* last = &recent[(launches - 1) % RECENT]
    if last.name != <PyObject*>name or last.stream != stream.handle or last.device != stream.device_index:
        note_name_slow(name, stream)


cdef void note_name_slow(str name, Stream stream) noexcept:
    global launches
    cdef Recent* place = &recent[launches % RECENT]
    cdef PyObject* before = place.name
    Py_INCREF(name)
    place.name, place.device, place.stream = <PyObject*>name, stream.device_index, stream.handle
    launches += 1
    Py_XDECREF(before)


def latest_kernels():
    """(name, device, handle of the stream) of the kernels that were launched last, the newest first, each once; for
    errors that do not name theirs."""
    cdef unsigned int back
    cdef Recent* each
    cdef dict found = {}
    for back in range(1, RECENT + 1):
        each = &recent[(launches - back) % RECENT]
        if back <= launches and each.name != NULL:
            found[<str>each.name, each.device, each.stream] = None
    return list(found)


def name_suspects():
    """What an error says of the kernels that may have caused it, and of what is left: text to append."""
    names = ", ".join([f"{name!r} on device {device}, stream {stream:#x}" for name, device, stream in latest_kernels()])
    text = f"; the kernels launched last, the newest first: {names}" if names else ""
    return f"{text}; what was on the device is lost, and every call of it fails alike: host memory, page-locked too, can " \
           "still be read, and other devices go on"


explain_faults(name_suspects)


# --- what a launch is given --------------------------------------------------------------------------------

cdef inline bint read_length(object value, unsigned int* out) noexcept:
    cdef int overflow = 0
    cdef long length
    if not PyLong_CheckExact(value):
        return False
    length = PyLong_AsLongAndOverflow(value, &overflow)
    out[0] = <unsigned int>length
    return 0 < length <= 0xFFFFFFFF and not overflow


cdef int read_dimensions(object value, str name, unsigned int* out) except -1:
    out[0] = out[1] = out[2] = 1
    if read_length(value, &out[0]):
        return 0
    return read_dimensions_slow(value, name, out)


cdef int read_dimensions_slow(object value, str name, unsigned int* out) except -1:
    cdef Py_ssize_t index
    if not isinstance(value, (tuple, list)):
        value = (value,)
    if not 1 <= len(value) <= 3:
        raise ValueError(f"{name} is {value!r}; pass an int, or one to three of them")
    for index, length in enumerate(value):
        number = checked_int(length, f"{name}[{index}]", 1, 0xFFFFFFFF, "an int, or one to three of them")
        out[index] = <unsigned int>number
    return 0


cdef unsigned int read_shared(object shared) except? 0:
    return checked_int(shared, "shared", 0, 0xFFFFFFFF, "bytes of dynamic shared memory as int")


cdef tuple triple(const unsigned int* lengths):
    return lengths[0], lengths[1], lengths[2]


# --- kernels -----------------------------------------------------------------------------------------------

@cython.no_gc_clear  # the destructor needs owner until the module is unloaded
cdef class Loaded:
    """A module of the driver's."""

    def __dealloc__(self):
        if self.handle:
            dispose(MODULE, self.device_index, self.handle)

    def __reduce__(self):
        refuse_copy(self, "it owns a module of the driver's; load the image again")


cdef Kernel make_kernel(Loaded loaded, uintptr_t handle, int device_index, str name, object signature):
    cdef Kernel made = Kernel.__new__(Kernel)
    made.name = name
    made.device_index = device_index
    made.loaded = loaded
    made.takes = make_parameters(handle, name, device_index, signature)
    made.most_shared = PERMITTED
    made.last_stream = UINTPTR_MAX
    made.handle = handle
    return made


@cython.no_gc_clear  # the destructor keeps the module until the launches are past
cdef class Kernel:
    """Kernel()\n--\n\n\
    A function that a device runs; of a Module, or made by host_kernel.

        kernel = module.function("saxpy", "float a, const float* x, float* y, int n")
        kernel[blocks, threads](2.0, x, y, n)
        kernel[blocks, threads, stream, shared_bytes](2.0, x, y, n)
        kernel.launch((8, 8), (16, 16), (2.0, x, y, n), cluster=2)

    Arguments of a launch are Buffers, Arrays, PinnedBuffers and objects with __cuda_array_interface__, of which the
    kernel gets the address; None, a NULL pointer; ints, floats, bools and complex numbers; numpy's scalars, ctypes'
    values and structures, and bytes, as they lie in memory.  An int is laid out as the parameter's size says.  A float
    needs a signature, or a driver that tells the parameter's size (CUDA 12.4), as does nothing else.

    Memory of other streams is not handed out before the kernel is done with it, and what a captured launch uses, the
    graph keeps alive.  The module stays loaded as long as the kernel, a graph or a launch needs it.
    """

    def __init__(self):
        raise TypeError("a Kernel is made by Module.function() or host_kernel()")

    def __dealloc__(self):
        if self.launched_on is not None and self.loaded is not None:
            for handle in self.launched_on:
                keep_until_passed(self.device_index, handle, self.loaded)

    def __reduce__(self):
        refuse_copy(self, "it belongs to a module that is loaded in this process; load that again")

    cdef int require_made(self) except -1:
        return 0 if self.handle else refuse_unmade(self)

    def __getitem__(self, sizes):
        """kernel[grid, block], kernel[grid, block, stream] or kernel[grid, block, stream, shared]: a Launcher.

        Arguments:
            grid: int, or one to three ints, blocks.
            block: the same, threads.
            stream: Stream, handle as int, or None for the current stream of each call.
            shared: int, bytes of dynamic shared memory for a block.
        Raises:
            ValueError, TypeError: one is out of range or of the wrong kind, or the stream is on another device.
        """
        cdef Launcher made
        self.require_made()
        if not isinstance(sizes, tuple) or not 2 <= len(sizes) <= 4:
            raise TypeError(f"kernel {self.name!r} takes [grid, block], [grid, block, stream] or [grid, block, stream, "
                            f"shared]; {sizes!r} was given")
        made = Launcher.__new__(Launcher)
        made.kernel = self
        read_dimensions((<tuple>sizes)[0], "grid", made.size.grid)
        read_dimensions((<tuple>sizes)[1], "block", made.size.block)
        if len(sizes) > 2 and (<tuple>sizes)[2] is not None:
            made.chosen = stream_for((<tuple>sizes)[2], self.device_index, f"kernel {self.name!r}")
        if len(sizes) > 3:
            made.size.shared = read_shared((<tuple>sizes)[3])
        return made

    def launch(self, grid, block, args=(), *, stream=None, shared=0, bint cooperative=False, cluster=None,
               bint programmatic=False):
        """Puts the kernel into a stream (cuLaunchKernelEx).

        Arguments:
            grid: int, or one to three ints, blocks.
            block: the same, threads of a block.
            args: a tuple or list of arguments.
            stream: Stream, handle as int, or None for the current stream of the kernel's device.
            shared: int, bytes of dynamic shared memory for a block; above 48 KiB the kernel is permitted more, once.
            cooperative: bool, all blocks run at once, so that they may wait for each other.
            cluster: int, or one to three ints, blocks of a cluster, which divide the grid (compute capability 9.0).
            programmatic: bool, the kernel may begin before the one before it in the stream has ended, where that one
                allows it, and waits for it by itself (cudaGridDependencySynchronize; compute capability 9.0).
        Raises:
            TypeError: a wrong number of arguments, or one of a kind that its parameter does not take; the text names
                the argument's index.
            ValueError: a number out of range, memory that was freed or is on another device, or a stream that is.
            CudaError: the driver refused; the text says which limit was passed.
            RaceError: the race detector is on, and nothing orders the launch with earlier work on its memory.

        On the host device blocks may run at the same time, whatever is asked for here, and none may wait for another.
        """
        cdef Dimensions size
        cdef Extras extras
        self.require_made()
        memset(&extras, 0, sizeof(Extras))
        read_dimensions(grid, "grid", size.grid)
        read_dimensions(block, "block", size.block)
        size.shared = read_shared(shared)
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"args is {args!r:.60} of type {type(args).__name__}; pass a tuple of arguments")
        extras.flags = LAUNCH_COOPERATIVE * cooperative | LAUNCH_PROGRAMMATIC * programmatic
        if cluster is not None:
            read_dimensions(cluster, "cluster", extras.cluster)
        self.launch_on(&size, &extras if extras.flags or extras.cluster[0] else NULL,
                       stream_for(stream, self.device_index, f"kernel {self.name!r}"), tuple(args))

    cdef int launch_on(self, const Dimensions* size, const Extras* extras, Stream stream, tuple arguments) except -1:
        cdef Packed packed
        cdef Access access
        cdef object _room = pack(self.takes, arguments, stream.handle, &packed)
        cdef int code
        if stream.handle != self.last_stream:
            self.note_stream(stream)
        if packed.ran or packed.shared or size.shared > self.most_shared or watch.sanitizing or any_capture():
            self.prepare_slow(&packed, size.shared, stream, arguments)
        begin_use(&access, uses_owner, <PyObject*>arguments)
        if has_suspended_pools():
            self.end_asleep(&access, &packed, arguments)
        with nogil:  # a full queue may wait for a function of Python's
            code = put_in(self, size, extras, stream.handle, packed.pointers)
        end_use(&access)
        if code:
            self.raise_refused(code, size, stream)
        note_name(self.name, stream)
        return 0

    cdef int prepare_slow(self, Packed* packed, unsigned int shared, Stream stream, tuple arguments) except -1:
        # Everything that may give up the GIL, or run code of the caller's.  What the launch uses is noted before it, so that
        # a free in another thread meanwhile waits for it.
        cdef Record record = None
        if shared > self.most_shared:
            self.permit_shared(shared)
        if packed.foreign:
            follow_producers(self.takes, arguments, stream)
        if any_capture():
            record = record_on(stream.device_index, stream.handle)
            if record is not None:
                self.keep_with(record, arguments)
        if watch.sanitizing:
            announce_memory(self.takes, arguments, stream, self.name)
        if packed.shared:
            note_memory(self.takes, arguments, stream, record is not None)
        return look_again(self.takes, arguments, packed)

    cdef int end_asleep(self, Access* access, Packed* packed, tuple arguments) except -1:
        try:
            refuse_asleep(self.takes, arguments, packed)
        except BaseException:
            end_use(access)
            raise
        return 0

    cdef int keep_with(self, Record record, tuple arguments) except -1:
        # The kernel as others' memory: no allocator of accelrt knows of it, so it stays until replays are past.
        keep_side(record, <PyObject*>self, None, OTHER_HOST, self.handle)
        return keep_memory(self.takes, arguments, record)

    cdef int change_node(self, uintptr_t graph, uintptr_t exec_, uintptr_t node, const Dimensions* size,
                         tuple arguments) except -1:
        cdef Packed packed
        cdef object _room = pack(self.takes, arguments, UINTPTR_MAX, &packed)
        cdef int code
        if has_suspended_pools():
            refuse_asleep(self.takes, arguments, &packed)
        if size.shared > self.most_shared:
            self.permit_shared(size.shared)
        with nogil:
            code = registry.active().kernel_node_set(
                graph, exec_, node, self.handle, size.grid[0], size.grid[1], size.grid[2], size.block[0], size.block[1],
                size.block[2], size.shared, packed.pointers)
        if code:
            grid, block = triple(size.grid), triple(size.block)
            raise_status(code, "kernel_node_set", ("graph_exec", exec_, "node", node, "kernel", self.name, "grid", grid,
                                                   "block", block, "shared", size.shared),
                         explain(self, code, grid, block, size.shared))
        return 0

    cdef int note_stream(self, Stream stream) except -1:
        # The kernel may die, and its module with it, while a launch is under way.
        if self.launched_on is None:
            self.launched_on = {}
        self.launched_on[stream.handle] = None if stream.pooled != NULL else stream
        self.last_stream = stream.handle
        return 0

    cdef int permit_shared(self, unsigned int shared) except -1:
        cdef int code
        with nogil:
            code = registry.active().function_attribute_set(
                self.handle, DYNAMIC_SHARED, <int>min(shared, <unsigned int>0x7FFFFFFF))
        if code:
            raise_status(code, "function_attribute_set", ("kernel", self.name, "shared", shared),
                         explain(self, code, (1, 1, 1), (1, 1, 1), shared))
        self.most_shared = shared
        return 0

    cdef int raise_refused(self, int code, const Dimensions* size, Stream stream) except -1:
        grid, block = triple(size.grid), triple(size.block)
        raise_status(code, "kernel_launch", (
            "kernel", self.name, "grid", grid, "block", block, "shared", size.shared, "device", self.device_index,
            "stream", stream.handle), explain(self, code, grid, block, size.shared))
        return 0

    @property
    def parameters(self):
        """Bytes of each parameter, as a tuple of ints; None where neither a signature nor the driver tells."""
        self.require_made()
        if self.takes.count < 0:
            return None
        return tuple([self.takes.each[index].size for index in range(self.takes.count)])

    @property
    def attributes(self):
        """What the compiler made of the kernel, as KernelAttributes (cuFuncGetAttribute): registers of a thread, bytes
        of static shared, constant and local memory, the threads that a block may have, versions as 90 for 9.0, and the
        bytes of dynamic shared memory that it is permitted."""
        self.require_made()
        return KernelAttributes(*[ask_attribute(self, number) for number in range(len(KernelAttributes._fields))])

    def occupancy(self, block, shared=0):
        """How many blocks a multiprocessor holds at a time (cuOccupancyMaxActiveBlocksPerMultiprocessor).

        Arguments:
            block: int, or one to three ints, threads of a block.
            shared: int, bytes of dynamic shared memory for a block.
        """
        cdef unsigned int[3] lengths
        cdef size_t bytes_ = read_shared(shared)
        cdef int blocks = 0, code
        self.require_made()
        read_dimensions(block, "block", lengths)
        threads = lengths[0] * <object>lengths[1] * lengths[2]
        code = registry.active().occupancy_blocks(self.handle, min(threads, 0x7FFFFFFF), bytes_, &blocks)
        if code:
            raise_status(code, "occupancy_blocks", ("kernel", self.name, "block", block, "shared", shared))
        return blocks

    def max_potential_block_size(self, shared=0, limit=0):
        """The block that fills the device best, and the blocks of it that do (cuOccupancyMaxPotentialBlockSize).

        Arguments:
            shared: int, bytes of dynamic shared memory for a block.
            limit: int, threads that a block has at most; 0 is as many as the kernel takes.
        Returns:
            (blocks of the smallest grid that fills the device, threads of a block).
        """
        cdef size_t bytes_ = read_shared(shared)
        cdef int most = checked_int(limit, "limit", 0, 0x7FFFFFFF, "threads as int"), grid = 0, threads = 0
        cdef int code
        self.require_made()
        code = registry.active().occupancy_block_size(self.handle, bytes_, most, &grid, &threads)
        if code:
            raise_status(code, "occupancy_block_size", ("kernel", self.name, "shared", shared, "limit", limit))
        return grid, threads

    def max_active_clusters(self, grid, block, cluster, shared=0):
        """How many clusters the device holds at a time (cuOccupancyMaxActiveClusters).

        Arguments:
            grid, block, cluster, shared: as launch takes them.
        """
        cdef Dimensions size
        cdef unsigned int[3] lengths
        cdef int clusters = 0, code
        self.require_made()
        read_dimensions(grid, "grid", size.grid)
        read_dimensions(block, "block", size.block)
        read_dimensions(cluster, "cluster", lengths)
        size.shared = read_shared(shared)
        code = registry.active().occupancy_clusters(
            self.device_index, self.handle, size.grid[0], size.grid[1], size.grid[2], size.block[0], size.block[1],
            size.block[2], size.shared, lengths[0], lengths[1], lengths[2], &clusters)
        if code:
            raise_status(code, "occupancy_clusters", ("kernel", self.name, "cluster", triple(lengths)))
        return clusters

    def __repr__(self):
        if not self.handle:
            return "<accelrt.Kernel not made>"
        return f"<accelrt.Kernel {self.name!r} on device {self.device_index}>"


cdef str explain(Kernel kernel, int code, tuple grid, tuple block, unsigned int shared):
    # What an INVALID_VALUE of a launch means, as far as the limits say.
    if code != INVALID_VALUE:
        return ""
    attributes = kernel.attributes
    return init.later("accelrt.kernels.limits").explain_refusal(
        kernel.device_index, attributes.max_threads_per_block, attributes.shared_size_bytes, grid, block, shared)


cdef int ask_attribute(Kernel kernel, int number) except? -1:
    cdef int value = 0
    cdef int code = registry.active().function_attribute(kernel.handle, number, &value)
    if code:
        raise_status(code, "function_attribute", ("kernel", kernel.name, "attribute", number))
    return value


cdef inline int put_in(
    Kernel kernel, const Dimensions* size, const Extras* extras, uintptr_t stream, void** arguments
) noexcept nogil:
    if extras != NULL:
        return registry.active().kernel_launch_with(
            kernel.device_index, stream, kernel.handle, size.grid[0], size.grid[1], size.grid[2], size.block[0],
            size.block[1], size.block[2], size.shared, arguments, extras.flags, extras.cluster[0], extras.cluster[1],
            extras.cluster[2])
    return registry.active().kernel_launch(
        kernel.device_index, stream, kernel.handle, size.grid[0], size.grid[1], size.grid[2], size.block[0],
        size.block[1], size.block[2], size.shared, arguments)


@cython.freelist(16)
cdef class Launcher:
    """Launcher()\n--\n\n\
    A kernel with the size of its launches: what kernel[grid, block] is.  Calling it launches; it may be kept, and
    called by several threads."""

    def __init__(self):
        raise TypeError("a Launcher is made by kernel[grid, block]")

    def __reduce__(self):
        refuse_copy(self, "it belongs to a module that is loaded in this process; load that again")

    def __call__(self, *args):
        """Puts the kernel into the stream; see Kernel.launch for what it raises.

        Arguments:
            args: the kernel's arguments.
        """
        cdef Kernel kernel = self.kernel
        if kernel is None:
            refuse_unmade(self)
        kernel.launch_on(&self.size, NULL, self.chosen if self.chosen is not None else current_of(kernel.device_index), args)

    @property
    def grid(self):
        """Blocks, (x, y, z)."""
        return triple(self.size.grid)

    @property
    def block(self):
        """Threads of a block, (x, y, z)."""
        return triple(self.size.block)

    @property
    def shared(self):
        """Bytes of dynamic shared memory for a block."""
        return self.size.shared

    @property
    def stream(self):
        """The Stream that it launches on, or None for the current one of each call."""
        return self.chosen

    def __repr__(self):
        name = None if self.kernel is None else self.kernel.name
        return f"<accelrt.Launcher of {name!r}, grid {self.grid}, block {self.block}>"
