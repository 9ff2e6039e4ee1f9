"""Memory between processes: packets with descriptors, mappings, what is opened and what is lent."""
cimport cython
import os
import weakref
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free
from posix.unistd cimport getpid
from queue import Empty, SimpleQueue

from accelrt.allocator.backing.pages cimport is_managed
from accelrt.allocator.external.torch_table cimport hold_share, let_go_of_share
from accelrt.allocator.pinned.cache cimport adopt_pinned, pinned_file
from accelrt.allocator.pool cimport (
    add_imported, begin_export, copy_uses, drop_imported, end_export, export_page, Exported, open_imported, share_new_pages,
)
from accelrt.arrays.array cimport DEVICE_BUFFER, Array, Buffer, PinnedBuffer, check_live, raise_freed
from accelrt.core.locks cimport add_in_turn
from accelrt.core.process cimport Descriptor, own, own_all
from accelrt.core.process import call_at_fork
from accelrt.core.threads cimport pause
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport (
    add_use, ask_stream, ask_use, drop_use, enter_wait, go_relaxed, is_capturing, is_device_lost, LATER, leave_wait,
    meaning_of, record_behind, restore_mode, take_event, unmark_use, Use, UseStore,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.errors import NotSupportedError
from accelrt.memory.caching cimport release_bytes
from accelrt.runtime.lifetimes cimport drain
from accelrt.status cimport INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, SLEEPING, raise_status, refuse_copy
from accelrt.streams.stream cimport Event, PER_THREAD, Stream, stream_for
cimport accelrt.runtime.access as watch


# stub: FILES_AT_ONCE: int
# stub: FOREVER: float

# --- packets ----------------------------------------------------------------------------------------------------------
# Sockets of packets with file descriptors, whose waits all have a limit.
#
# A packet is sent or received by one call, which gives up the GIL once.  Whatever a call took from the system belongs to
# a Descriptor before Python code runs again, so that an interruption loses none.

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <math.h>
    #include <poll.h>
    #include <stddef.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/un.h>
    #include <time.h>
    #include <unistd.h>
    enum { accelrt_most_files = 64 };

    static double accelrt_clock_now(void) {  /* as time.monotonic() */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    }
    /* 0: there is something to be done; ETIMEDOUT, EINTR or what poll says. */
    static int accelrt_await_file(int file, short wanted, double deadline) {
        struct pollfd entry = {file, wanted, 0};
        int wait = -1, code;
        if (!isinf(deadline)) {
            double left = (deadline - accelrt_clock_now()) * 1e3;
            if (left <= 0) return ETIMEDOUT;
            wait = left > 1e9 ? 1000000000 : (int)left + 1;
        }
        code = poll(&entry, 1, wait);
        return code < 0 ? errno : code ? 0 : EAGAIN;
    }
    static int accelrt_make_socket(int *out_file) {
        *out_file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        return *out_file < 0 ? errno : 0;
    }
    static socklen_t accelrt_fill_address(struct sockaddr_un *address, const char *name, size_t length) {
        memset(address, 0, sizeof *address);
        address->sun_family = AF_UNIX;
        memcpy(address->sun_path + 1, name, length);  /* in the abstract namespace: a zero before the name */
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    }
    static int accelrt_listen_at(int file, const char *name, size_t length, int backlog) {
        struct sockaddr_un address;
        socklen_t size = accelrt_fill_address(&address, name, length);
        if (bind(file, (struct sockaddr *)&address, size)) return errno;
        return listen(file, backlog) ? errno : 0;
    }
    /* EAGAIN: the other's queue is full, so it accepts nothing at present. */
    static int accelrt_connect_to(int file, const char *name, size_t length) {
        struct sockaddr_un address;
        socklen_t size = accelrt_fill_address(&address, name, length);
        return connect(file, (struct sockaddr *)&address, size) ? errno : 0;
    }
    static int accelrt_accept_one(int file, int *out_file) {
        *out_file = accept4(file, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        return *out_file < 0 ? errno : 0;
    }
    static int accelrt_peer_of(int file, int *out_pid, int *out_uid) {
        struct ucred peer;
        socklen_t size = sizeof peer;
        if (getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size)) return errno;
        *out_pid = peer.pid;
        *out_uid = (int)peer.uid;
        return 0;
    }
    static int accelrt_pidfd_of_peer(int file) {  /* Linux 6.5; -1 where the system cannot */
        int life = -1;
        socklen_t size = sizeof life;
        return getsockopt(file, SOL_SOCKET, 77 /* SO_PEERPIDFD */, &life, &size) ? -1 : life;
    }
    static int accelrt_send_packet(int file, const char *data, size_t size, const int *files, int count) {
        char control[CMSG_SPACE(accelrt_most_files * sizeof(int))] __attribute__((aligned(8)));
        struct iovec part = {(void *)data, size};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (count) {
            struct cmsghdr *head;
            memset(control, 0, sizeof control);
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(count * sizeof(int));
            head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN(count * sizeof(int));
            memcpy(CMSG_DATA(head), files, count * sizeof(int));
        }
        return sendmsg(file, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
    }
    static int accelrt_receive_packet(int file, char *data, size_t size, size_t *out_size, int *files, int *out_count) {
        char control[CMSG_SPACE(accelrt_most_files * sizeof(int))] __attribute__((aligned(8)));
        struct iovec part = {data, size};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                 .msg_controllen = sizeof control};
        struct cmsghdr *head;
        ssize_t got = recvmsg(file, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        *out_count = 0;
        if (got < 0) return errno;
        *out_size = (size_t)got;
        for (head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
            if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
                int count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                memcpy(files + *out_count, CMSG_DATA(head), count * sizeof(int));
                *out_count += count;
            }
        return 0;
    }
    """
    double clock_now "accelrt_clock_now" () noexcept nogil
    int await_file "accelrt_await_file" (int file, short wanted, double deadline) noexcept nogil
    int make_socket "accelrt_make_socket" (int* out_file) noexcept nogil
    int listen_at "accelrt_listen_at" (int file, const char* name, size_t length, int backlog) noexcept nogil
    int connect_to "accelrt_connect_to" (int file, const char* name, size_t length) noexcept nogil
    int accept_one "accelrt_accept_one" (int file, int* out_file) noexcept nogil
    int peer_of "accelrt_peer_of" (int file, int* out_pid, int* out_uid) noexcept nogil
    int pidfd_of_peer "accelrt_pidfd_of_peer" (int file) noexcept nogil
    int send_packet "accelrt_send_packet" (
        int file, const char* data, size_t size, const int* files, int count) noexcept nogil
    int receive_packet "accelrt_receive_packet" (
        int file, char* data, size_t size, size_t* out_size, int* files, int* out_count) noexcept nogil
    int shut_down "shutdown" (int file, int how) noexcept nogil
    int ETIMEDOUT, ETOOMANYREFS, SHUT_RDWR
    short POLLIN, POLLOUT

cdef enum:
    LARGEST = 65536     # bytes of a packet
    MOST_FILES = 64     # descriptors of a packet; Linux takes 253
    LONGEST_NAME = 100  # bytes; Linux takes 107

FILES_AT_ONCE = MOST_FILES
FOREVER = float("inf")

cdef object _open = weakref.WeakSet()  # Descriptors of all sockets of this module: a forked child closes them


cdef int raise_errno(int code, str what) except -1:
    raise OSError(code, f"{what}: {os.strerror(code)}")


cdef class Endpoint:
    """A socket; closed by close(), or with the object."""

    cdef Descriptor file
    cdef object __weakref__

    def __cinit__(self):
        self.file = own(-1)

    def __reduce__(self):
        refuse_copy(self, "it owns a socket of this process")

    def fileno(self) -> int:
        return self.file.number

    cdef int adopt(self, int file) except -1:
        self.file = own(file)
        _open.add(self.file)
        return 0

    cdef int open(self) except -1:
        cdef int file, code = make_socket(&file)
        if code:
            raise_errno(code, "no socket could be made")
        return self.adopt(file)

    def close(self) -> None:
        self.file.release()

    def abandon(self) -> None:
        """Forgets the socket: its number is another file's by now."""
        self.file.forget()


cdef class Listener(Endpoint):
    """A socket in the abstract namespace that other processes connect to."""

    def __init__(self, str name, int backlog=128) -> None:
        cdef bytes text = name.encode()
        cdef int code
        if not 0 < len(text) <= LONGEST_NAME:
            raise ValueError(f"{name!r} is no name of a socket")
        self.open()
        code = listen_at(self.file.number, text, len(text), backlog)
        if code:
            self.close()
            raise_errno(code, f"nothing can listen at {name!r}")

    def accept(self) -> Connection | None:
        """Accepts the next connection; None if nobody waits for one.

        Raises:
            OSError: as of accept(2); the connection stays in the queue.
        """
        cdef Connection connection = Connection.__new__(Connection)
        cdef int file, code
        with nogil:
            code = accept_one(self.file.number, &file)
        if code == EAGAIN:
            return None
        if code:
            raise_errno(code, "a connection was not accepted")
        connection.adopt(file)
        return connection


cdef class Connection(Endpoint):
    """Connection()\n--\n\n\
    One end of a connection.

    Attributes:
        deadline: float, of time.monotonic(), until when each call waits that is given no other; FOREVER at first.
        number: int, the caller's.
    """
    # stub: def __init__(self) -> None: ...

    cdef public double deadline
    cdef public long number

    def __cinit__(self):
        self.deadline = FOREVER

    def __init__(self) -> None:
        raise TypeError("a Connection is made by connect() or Listener.accept()")

    @property
    def peer(self) -> tuple[int, int]:
        """The process at the other end, (pid, uid): that which connected, or which listens."""
        cdef int pid = 0, uid = 0
        cdef int code = peer_of(self.file.number, &pid, &uid)
        if code:
            raise_errno(code, "the process at the other end is not known")
        return pid, uid

    def open_life(self) -> Descriptor | None:
        """A Descriptor that can be read once the process at the other end has ended; None where the system has none."""
        cdef int life = pidfd_of_peer(self.file.number)
        return own(life) if life >= 0 else None

    def shutdown(self) -> None:
        """Ends the connection for both ends; whoever waits in a call of this object's is told."""
        if self.file.number >= 0:
            shut_down(self.file.number, SHUT_RDWR)

    cdef int check_wait(self, int code, str what) except -1:
        # After a wait: raises, or returns for another attempt.
        if code == EINTR:
            return PyErr_CheckSignals()
        if code == ETIMEDOUT:
            raise TimeoutError(f"{what}: it took too long")
        if code and code != EAGAIN:
            raise_errno(code, what)
        return 0

    def wait_readable(self, double deadline) -> bool:
        """Tells whether a packet came, or the other end was closed, by the deadline."""
        cdef int code = EAGAIN
        while code:
            with nogil:
                code = await_file(self.file.number, POLLIN, deadline)
            if code == ETIMEDOUT:
                return False
            self.check_wait(code, "nothing came")
        return True

    def send(self, bytes packet not None, files: Sequence[int] = (), deadline: float | None = None) -> None:
        """Sends a packet with at most FILES_AT_ONCE descriptors, which stay the caller's.

        Raises:
            TimeoutError: the other end takes nothing.
            OSError: it is gone.
        """
        cdef int[MOST_FILES] numbers
        cdef int count = 0, code = EAGAIN
        cdef const char* data = packet
        cdef size_t size = len(packet)
        cdef double until = self.deadline if deadline is None else deadline
        if not 0 < size <= LARGEST or len(files) > MOST_FILES:
            raise ValueError(f"a packet of {size} bytes and {len(files)} descriptors")
        for file in files:
            numbers[count] = file
            count += 1
        while code:
            with nogil:
                code = send_packet(self.file.number, data, size, numbers, count)
                if code == EAGAIN:
                    code = await_file(self.file.number, POLLOUT, until)
                    code = code if code else EAGAIN
                elif code == ETOOMANYREFS and clock_now() < until:  # descriptors under way that nobody took yet
                    pause(1000000)
                    code = EINTR
            self.check_wait(code, "nothing could be sent")
        return None

    def receive(self, deadline: float | None = None) -> tuple[bytes, list[Descriptor]]:
        """The next packet, and its descriptors.

        Returns:
            (bytes, list of Descriptors); b"" where the other end was closed.
        Raises:
            TimeoutError: nothing came.
            OSError: the connection broke.
        """
        cdef char[LARGEST] data
        cdef size_t size = 0
        cdef int[MOST_FILES] numbers
        cdef int count = 0, code = EAGAIN
        cdef list files = []
        cdef double until = self.deadline if deadline is None else deadline
        while code:
            with nogil:
                code = receive_packet(self.file.number, data, LARGEST, &size, numbers, &count)
                if code == EAGAIN:
                    code = await_file(self.file.number, POLLIN, until)
                    code = code if code else EAGAIN
            self.check_wait(code, "nothing came")
        own_all(files, numbers, count)
        return data[:size], files

    # --- as multiprocessing's challenges call it ---

    def send_bytes(self, packet: bytes) -> None:
        self.send(packet)

    def recv_bytes(self, maxlength: int = LARGEST) -> bytes:
        packet, files = self.receive()
        files.clear()  # which a challenge has none of
        if not packet:
            raise EOFError("the connection was closed")
        if len(packet) > maxlength:
            raise OSError(f"a packet of {len(packet)} bytes; {maxlength} were expected")
        return packet


def connect(str name, double deadline) -> Connection:
    """Connects to the process that listens by that name.

    Raises:
        TimeoutError: it accepts nobody.
        ConnectionRefusedError: nobody listens.
        OSError: as of socket(2) and connect(2).
    """
    cdef Connection connection = Connection.__new__(Connection)
    cdef bytes text = name.encode()
    cdef const char* data = text
    cdef size_t length = len(text)
    cdef int code = EAGAIN
    if not 0 < length <= LONGEST_NAME:
        raise ValueError(f"{name!r} is no name of a socket")
    connection.open()
    while code:
        with nogil:
            code = connect_to(connection.file.number, data, length)
            if code == EAGAIN:
                pause(2000000)
                code = ETIMEDOUT if clock_now() >= deadline else EINTR
        connection.check_wait(code, f"nobody answered at {name!r}")
    return connection


def forget_sockets() -> None:
    """In a forked child, which has none of the sockets that its parent opened: closes what it inherited."""
    cdef Descriptor file
    for file in _open:
        file.release()


call_at_fork("sharing.mapping", "connections", child=forget_sockets)


# --- mapping ----------------------------------------------------------------------------------------------------------
# Memory that several processes have: in its owner's process the pages that are exported, in another one the addresses at
# which they are mapped.  handles.py, producer.py and consumer.py say who tells whom what.

cdef enum:
    UUID_BYTES = 16
    IPC_BYTES = 64
    CONFIRMED = 2  # answers in a row that the device is lost


def share_pages() -> None:
    """Pages that any pool makes from now on can be mapped by other processes."""
    share_new_pages()


def relax() -> int:
    """Has the calling thread break no capture of another thread by what it asks of the driver; what restore() takes."""
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        raise_status(code, "capture_mode_exchange", ())
    return mode


def restore(int mode) -> None:
    """Puts back the mode that the thread had before relax()."""
    restore_mode(registry.active(), mode)


# --- devices -----------------------------------------------------------------------------------------------------

def uuid_of(int ordinal) -> bytes:
    """The device's 16 bytes, which name it in every process."""
    cdef char[UUID_BYTES] uuid
    cdef int code
    with nogil:
        code = registry.active().device_uuid(ordinal, uuid)
    if code:
        raise_status(code, "device_uuid", ("device", ordinal))
    return uuid[:UUID_BYTES]


def find_device(bytes uuid) -> int:
    """The ordinal that a device has in this process; -1 where this process does not see it."""
    cdef int count = 0, ordinal, code
    with nogil:
        code = registry.active().device_count(&count)
    if code:
        raise_status(code, "device_count", ())
    for ordinal in range(count):
        if uuid_of(ordinal) == uuid:
            return ordinal
    return -1


def refuse_capture(Stream stream, str call) -> None:
    """RuntimeError where the stream is capturing: events of other processes are no part of a graph."""
    cdef int code
    cdef bint capturing
    with nogil:
        capturing = is_capturing(registry.active(), stream.device_index, stream.handle, &code)
    if code:
        raise_status(code, "capture_status", ("stream", stream.handle))
    if capturing:
        raise RuntimeError(
            f"{call}: the stream {stream!r} is capturing, and what orders two processes cannot be part of a graph; {call} "
            "before the capture begins, or after its end"
        )


# --- the owner's side ----------------------------------------------------------------------------------------------

@cython.no_gc  # the destructor ends the exports, which a collection would have cleared
cdef class SharedBytes:
    """SharedBytes()\n--\n\n\
    A Buffer's bytes as other processes may have them; released when neither the Buffer nor anything else keeps this.  Or
    a block of torch's, which goes back no sooner than this."""
    # stub: serial: int | None
    # stub: pages: tuple[tuple[int, int], ...]

    cdef readonly int device_index
    cdef readonly uintptr_t ptr
    cdef readonly size_t nbytes
    cdef readonly size_t base      # address of the first page, or of the plain segment
    cdef readonly size_t size      # bytes from there on
    cdef readonly object serial    # of a plain segment; None for pages
    cdef readonly tuple pages      # (serial, size) of each
    cdef list handles
    cdef object view               # of memory of a Reservation, what keeps that; or None
    cdef list exports              # its pages that the allocator counts as exported
    cdef bint is_opened            # of another process's: the handles are Descriptors, and view is its Lease
    cdef bint exported             # the allocator counts it as such
    cdef bint is_torchs
    cdef object __weakref__

    def __init__(self) -> None:
        raise TypeError("a SharedBytes belongs to the Buffer whose memory is shared")

    def __dealloc__(self):
        cdef int device = self.device_index
        cdef uintptr_t address = self.ptr
        if self.is_torchs:
            with nogil:
                let_go_of_share(address)
        elif self.is_opened:
            pass  # the Lease and the Descriptors end by themselves
        elif self.view is not None:
            for page in self.exports:
                address = page
                with nogil:
                    end_export(device, address)
        elif address:
            if self.exported:
                with nogil:
                    end_export(device, address)
            release_bytes(device, address)

    def __reduce__(self):
        refuse_copy(self, "it owns memory of this process")

    def export_page(self, index: int) -> tuple[int, Descriptor | None]:
        """A file descriptor of one page, and the Descriptor that owns it, with which it is closed; None where the page keeps
        it while it lives, for others that open it.

        Raises:
            CudaError: the driver refused.
        """
        cdef uintptr_t handle
        cdef int file = -1, code
        cdef bint is_kept = False
        if self.is_opened:
            return self.handles[index].fileno(), None
        handle = self.handles[index]
        with nogil:
            code = export_page(handle, &file, &is_kept)
        if code:
            raise_status(code, "physical_export", ("handle", handle, "device", self.device_index))
        return file, None if is_kept else own(file)

    def export_segment(self) -> bytes:
        """The 64 bytes by which another process opens a plain segment (cuIpcGetMemHandle)."""
        cdef char[IPC_BYTES] handle
        cdef uintptr_t base = self.base
        cdef int device = self.device_index
        cdef int code
        with nogil:
            code = registry.active().ipc_memory_export(device, base, handle)
        if code:
            raise_status(code, "ipc_memory_export", ("device", device, "address", base))
        return handle[:IPC_BYTES]


cdef int refuse_export(int code, Buffer buffer, const Exported* export) except -1:
    if code == NOT_ALLOCATED:
        raise ValueError(f"{buffer!r} is no memory of accelrt's allocator, so it cannot be shared with other processes")
    if code == NOT_SUPPORTED:
        raise NotSupportedError(
            "memory of another allocator (cudaMallocAsync, or one of your own) cannot be shared with other processes; use "
            "the native backend, or copy it into memory of that", NOT_SUPPORTED, "NOT_SUPPORTED", "share",
        )
    if code == SLEEPING:
        raise_status(SLEEPING, "share", ("address", buffer.ptr))
    if code:
        raise_status(code, "share", ("address", buffer.ptr, "size", buffer.nbytes))
    if export.refused:
        raise NotSupportedError(
            f"{export.refused} of the {export.count} pages below {buffer!r} were made for this process alone, since "
            "accelrt.sharing was not imported yet, or because the device cannot make others; import accelrt.sharing "
            "before the first allocation, or call accelrt.empty_cache() after it and allocate this memory anew",
            NOT_SUPPORTED, "NOT_SUPPORTED", "share",
        )
    return 0


def share_bytes(Buffer buffer) -> SharedBytes:
    """The SharedBytes of a Buffer, made at the first call: from then on they own the memory, and the Buffer keeps them.
    Callers take turns.

    Raises:
        ValueError, NotSupportedError, SleepingMemoryError: as of Buffer.share().
    """
    cdef Exported export
    cdef SharedBytes shared
    cdef uintptr_t address = buffer.ptr
    cdef int device = buffer.device_index
    cdef int code = 0
    if not buffer.live:
        raise_freed(buffer, "this")
    if is_managed(address):
        raise NotSupportedError(
            f"{buffer!r} is managed memory, of which no driver gives another process a part; copy it into a Buffer without "
            "managed=True, and share that", NOT_SUPPORTED, "NOT_SUPPORTED", "share",
        )
    if buffer.kept and getattr(buffer.keeper, "reservation", None) is not None:
        return share_reserved(buffer)
    if buffer.kept:
        if not isinstance(buffer.keeper, SharedBytes):
            raise ValueError(f"{buffer!r} is memory that something else keeps, which cannot be shared; copy it into a "
                             "Buffer, and share that")
        return buffer.keeper
    shared = SharedBytes.__new__(SharedBytes)
    shared.device_index = device
    shared.nbytes = buffer.nbytes
    shared.pages, shared.handles = (), []
    if address == 0:
        return shared
    shared.ptr = address  # the Buffer may be freed by another thread from here on
    buffer.keeper = shared
    buffer.kept = True
    with nogil:
        code = begin_export(device, address, &export)
    shared.exported = code == 0 and export.refused == 0
    try:
        refuse_export(code, buffer, &export)
        describe(shared, &export)
    except BaseException:
        give_up(buffer, shared)
        raise
    finally:
        free(export.pages)
    return shared


cdef long long passed_on = 0  # pages that were given a number so far


def lease_of(Buffer buffer) -> Lease | None:
    """The lease that a Buffer of another process's memory keeps; None of this process's memory."""
    keeper = buffer.keeper if buffer.kept else None
    return keeper if isinstance(keeper, Lease) else None


def pass_on(Buffer buffer, Lease lease not None, ask: Callable[[Ending, int], list[Descriptor]]) -> SharedBytes:
    """Memory that this process has opened of another one, as its own to the next, which keeps the lease alive.

    Arguments:
        ask: gets the descriptors of the mapping's pages from their owner, since no driver exports what it has imported.
    Raises:
        ValueError: it is in a plain segment.
        as ask.
    """
    # Pages have numbers below 0, which none of this process's own has.
    global passed_on
    cdef SharedBytes shared = SharedBytes.__new__(SharedBytes)
    cdef Mapping memory = lease.ending.memory
    cdef uintptr_t at
    cdef list pages = []
    if buffer.nbytes and (memory is None or memory.plain):
        raise ValueError(
            f"{buffer!r} is memory of another process in a plain segment, which that process alone can share; copy it "
            "into a Buffer of this process, and share that"
        )
    shared.device_index, shared.ptr, shared.nbytes = buffer.device_index, buffer.ptr, buffer.nbytes
    shared.is_opened, shared.view, shared.handles = True, lease, []
    at = memory.base if buffer.nbytes else 0
    files = ask(lease.ending, sum(memory.sizes)) if buffer.nbytes else ()
    for size, file in zip(memory.sizes if buffer.nbytes else (), files, strict=True):
        if at + <size_t>size > buffer.ptr and at < buffer.ptr + buffer.nbytes:
            shared.handles.append(file)
            shared.base = at if not pages else shared.base
            passed_on += 1
            pages.append((-passed_on, size))
        at += <size_t>size
    shared.pages, shared.size = tuple(pages), sum([size for _, size in pages])
    return shared


cdef SharedBytes share_reserved(Buffer buffer):
    # The committed pages of a Reservation that a Buffer lies on, which are not decommitted meanwhile.
    cdef SharedBytes shared = SharedBytes.__new__(SharedBytes)
    cdef object reservation = buffer.keeper.reservation
    cdef size_t page = reservation.page_bytes
    cdef uintptr_t start = buffer.ptr - (buffer.ptr - <uintptr_t>reservation.ptr) % page, at = start
    cdef Exported export
    cdef int device = buffer.device_index, code
    cdef list pages = []
    shared.device_index, shared.ptr, shared.nbytes, shared.base = device, buffer.ptr, buffer.nbytes, start
    shared.view, shared.exports, shared.handles = buffer.keeper, [], []
    while at < buffer.ptr + buffer.nbytes:
        with nogil:
            code = begin_export(device, at, &export)
        if code == NOT_ALLOCATED:
            raise ValueError(f"the page at offset {at - <uintptr_t>reservation.ptr} of the Reservation is not committed, so "
                             "it cannot be shared; share a part that is")
        if code == 0 and export.refused == 0:
            shared.exports.append(at)
            pages.append((export.pages[0].serial, export.pages[0].size))
            shared.handles.append(export.pages[0].handle)
        free(export.pages)
        refuse_export(code, buffer, &export)
        at += page
    shared.pages, shared.size = tuple(pages), at - start
    return shared


cdef int describe(SharedBytes shared, const Exported* export) except -1:
    shared.base, shared.size = export.base, export.size
    shared.serial = None if export.count else export.serial
    shared.pages = tuple([(export.pages[index].serial, export.pages[index].size) for index in range(export.count)])
    shared.handles = [export.pages[index].handle for index in range(export.count)]
    return 0


def hold_tensor(int device, size_t base, size_t size, long long serial) -> SharedBytes | None:
    """The memory that torch shares there, by the first page's serial or the plain segment's; None where it has none any
    more.  torch's block goes back to its pool no sooner than the answer."""
    cdef SharedBytes shared = SharedBytes.__new__(SharedBytes)
    cdef const Exported* export
    cdef uintptr_t address = 0
    shared.device_index, shared.nbytes = device, size
    with nogil:
        export = hold_share(device, base, size, serial, &address)
    if export == NULL:
        return None
    shared.ptr, shared.is_torchs = address, True
    describe(shared, export)
    return shared


cdef int give_up(Buffer buffer, SharedBytes shared) except -1:
    # Returns the memory to the Buffer alone, unless that was freed meanwhile.
    cdef int device = shared.device_index
    cdef uintptr_t address = shared.ptr
    if shared.exported:
        shared.exported = False
        with nogil:
            end_export(device, address)
    if buffer.keeper is shared:
        shared.ptr = 0
        buffer.kept = False
        buffer.keeper = None
    return 0


def check_shareable(Buffer buffer) -> None:
    """The errors of share_bytes that need no export: memory that was freed, or that sleeps."""
    if not buffer.live:
        raise_freed(buffer, "this")
    watch.refuse_sleeping(buffer.ptr, "this Buffer")


def buffer_of(memory: Buffer | Array) -> Buffer:
    """The Buffer that holds a Buffer's or Array's memory.

    Raises:
        ValueError: the Array is on other memory, or was freed.
        TypeError: memory is neither.
    """
    if isinstance(memory, Buffer):
        return memory
    if not isinstance(memory, Array):
        raise TypeError(f"memory is of type {type(memory).__name__}; pass a Buffer, or an Array on one")
    check_live(memory, "this")
    if (<Array>memory).owner != DEVICE_BUFFER:
        raise ValueError(
            f"{memory!r} is on no Buffer, and only accelrt's own device memory can be shared with other processes; pass "
            "a copy: accelrt.empty(...).copy_(array)"
        )
    return (<Array>memory).base


def pick_stream(Buffer buffer, stream: Stream | int | None) -> Stream:
    """The stream after whose work the others use the bytes: one that was given, or the Buffer's own."""
    return buffer.stream if stream is None else stream_for(stream, buffer.device_index, "the memory")


# --- the other processes' side ---------------------------------------------------------------------------------------

cdef list _left = []  # Mappings that nothing refers to any more, and that the driver refused to close
cdef list _unreleased = []  # handles of pages that it refused to release


cdef class Relaxed:
    """The context in which the calling thread breaks no capture of another thread by what it asks of the driver."""

    cdef int mode

    def __enter__(self) -> Relaxed:
        self.mode = relax()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        restore_mode(registry.active(), self.mode)


cdef class Mapping:
    """Mapping()\n--\n\n\
    Memory of another process at addresses of this one; unmapped by close(), which waits for nothing."""

    def __init__(self) -> None:
        raise TypeError("a Mapping is made by reserve() or open_segment()")

    def __dealloc__(self):
        cdef Mapping other
        if self.base and self.unmap():
            other = Mapping.__new__(Mapping)  # what the driver refuses is tried again, by close_left
            other.device_index, other.base, other.size, other.mapped = self.device_index, self.base, self.size, self.mapped
            other.plain, other.noted, other.half_closed, other.lost = self.plain, self.noted, self.half_closed, self.lost
            self.base = 0
            _left.append(other)

    def __reduce__(self):
        refuse_copy(self, "it owns addresses of this process")

    def add_page(self, int file, size_t size) -> None:
        """Maps the next page, of a descriptor that stays the caller's."""
        cdef uintptr_t handle = 0, address = self.base + self.mapped
        cdef int device = self.device_index
        cdef int code, refusal
        if size > self.size - self.mapped:
            raise ValueError(f"a page of {size} bytes does not fit behind {self.mapped} of {self.size}")
        with nogil:
            code = registry.active().physical_import(device, file, &handle)
        if code:
            raise_status(code, "physical_import", ("device", device, "file", file))
        with nogil:
            code = registry.active().memory_map(address, size, handle)
            if code == 0:
                self.mapped += size
            refusal = registry.active().physical_release(handle)  # the mapping alone keeps the memory
        if refusal:
            _unreleased.append(handle)
        if code:
            raise_status(code, "memory_map", ("address", address, "size", size, "handle", handle))
        self.sizes.append(size)

    def finish(self) -> None:
        """Opens the pages for the device, and begins to note which streams use them."""
        cdef uintptr_t base = self.base
        cdef size_t size = self.size
        cdef int device = self.device_index
        cdef int code = 0
        if not self.plain and self.mapped != size:
            raise ValueError(f"{self.mapped} of {size} bytes are mapped")
        code = add_imported(device, base, size)  # first, so that a device that comes into use meanwhile finds it
        if code:
            raise_status(code, "import", ("address", base))
        self.noted = True
        if not self.plain:
            with nogil:
                code = open_imported(device, base, size)
            if code:
                raise_status(code, "memory_access", ("address", base, "size", size, "device", device))

    cdef int unmap(self) noexcept:
        # 0, or NOT_READY where the driver refused: beside a capture, say.  Then it is to be tried again.
        cdef int code
        if self.base == 0:
            return 0
        with nogil:
            code = close_segment(self.device_index, self.base) if self.plain else self.close_pages()
        self.lost = self.lost + 1 if is_device_lost(code) else 0
        if code and self.lost < CONFIRMED:
            return NOT_READY
        if self.noted:
            drop_imported(self.base)
            self.noted = False
        watch.note_forgotten(self.base, self.size)  # other memory may come to be there
        self.base = 0
        return 0

    cdef int close_pages(self) noexcept nogil:
        cdef int code = 0
        if self.mapped:
            code = registry.active().memory_unmap(self.base, self.mapped)
        if code == 0:
            self.mapped = 0
            self.half_closed = True
            code = registry.active().address_free(self.base, self.size)
        return code

    def close(self) -> bool:
        """Unmaps it, and returns whether that was done: after any answer but that the device is lost, the caller tries
        again."""
        return self.unmap() == 0

    def buffer(self, size_t offset, size_t nbytes, Stream stream not None, keeper: object) -> Buffer:
        """A Buffer of some of the bytes, which keeps keeper alive."""
        cdef Buffer view = Buffer.__new__(Buffer)
        view.device_index = self.device_index
        view.stream = stream
        view.ptr = self.base + offset
        view.nbytes = nbytes
        view.kept = True
        view.keeper = keeper
        view.live = True
        return view


def close_left() -> int:
    """Tries again to close what nothing refers to any more and the driver refused to close; how many are left."""
    cdef Mapping one
    cdef uintptr_t handle
    cdef int code
    for _ in range(len(_unreleased)):
        try:
            handle = _unreleased.pop(0)
        except IndexError:  # another thread was faster
            break
        with nogil:
            code = registry.active().physical_release(handle)
        if code and not is_device_lost(code):
            _unreleased.append(handle)
    for _ in range(len(_left)):
        try:
            one = _left.pop(0)
        except IndexError:  # another thread was faster
            break
        del one  # comes back to the list where it is refused again
    return len(_left) + len(_unreleased)


cdef int close_segment(int device, uintptr_t base) noexcept nogil:
    # The driver may wait for the device's work in it.
    cdef int mode
    cdef int code = NOT_READY
    if enter_wait():
        code = go_relaxed(registry.active(), &mode)
        if code == 0:
            code = registry.active().ipc_memory_close(device, base)
            restore_mode(registry.active(), mode)
        leave_wait()
    return code


def reserve(int device, size_t size) -> Mapping:
    """A Mapping with addresses for pages of so many bytes."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef uintptr_t address = 0
    cdef size_t granule = 0
    cdef int code
    with nogil:
        code = registry.active().granularity(device, &granule)
    if code:
        raise_status(code, "granularity", ("device", device))
    with nogil:
        code = registry.active().address_reserve(size, granule, &address)
    if code:
        raise_status(code, "address_reserve", ("size", size, "device", device))
    mapping.device_index = device
    mapping.base = address
    mapping.size = size
    mapping.sizes = []
    return mapping


def open_segment(int device, bytes handle, size_t size) -> Mapping:
    """A Mapping of a plain segment of another process (cuIpcOpenMemHandle)."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef uintptr_t address = 0
    cdef const char* data = handle
    cdef int mode, code
    drain()
    with nogil:
        code = go_relaxed(registry.active(), &mode)
        if code == 0:
            code = registry.active().ipc_memory_open(device, data, &address)
            restore_mode(registry.active(), mode)
    if code:
        raise_status(code, "ipc_memory_open", ("device", device))
    mapping.device_index = device
    mapping.base = address
    mapping.size = size
    mapping.plain = True
    return mapping


def local_buffer(SharedBytes memory not None, Stream stream not None) -> Buffer:
    """Makes a second Buffer on bytes that this process shares."""
    cdef Buffer view = Buffer.__new__(Buffer)
    view.device_index = memory.device_index
    view.stream = stream
    view.ptr = memory.ptr
    view.nbytes = memory.nbytes
    view.kept = True
    view.keeper = memory
    view.live = True
    return view


# --- leases -----------------------------------------------------------------------------------------------------------
# What this process has opened of others: the mappings, by what they map, and the leases on them.
#
# A Buffer of another process's memory keeps a Lease.  That ends with it, in one step that nothing can interrupt, and
# leaves an Ending in the queue of the memory's owner: the streams' work to wait for, the mapping to let go of, and the
# number that the owner is to be told.  Everything here is done by one call each, so that a thread of Python's sees all
# of it or nothing.

cdef enum:
    DOUBTFUL = 4   # refusals in a row until the whole device is waited for instead of a stream

cdef object turn = object()  # in whose critical section a call here is one step for other threads
cdef UseStore works     # of Endings
cdef dict _mapped = {}  # what is mapped -> Mapping that may be used


# --- work to wait for ----------------------------------------------------------------------------------------------

cdef int record(Use* work) noexcept nogil:
    cdef int code = take_event(registry.active(), work.device, EVENT_DISABLE_TIMING, &work.event)
    if code == 0:
        code = record_behind(registry.active(), work.device, work.event.handle, work.stream)
        if code:
            unmark_use(registry.active(), work)
    return code


cdef int wait_for_device(int device) noexcept nogil:
    cdef int mode
    cdef int code = NOT_READY
    if enter_wait():
        code = go_relaxed(registry.active(), &mode)
        if code == 0:
            code = registry.active().device_synchronize(device)
            restore_mode(registry.active(), mode)
        leave_wait()
    return code


cdef int look_otherwise(Use* work, int code) noexcept nogil:
    # After a refusal that may mean anything.  A stream that is idle needs no event; where it cannot be asked either, as one
    # of another library's that is destroyed, the whole device is waited for.
    if meaning_of(code) == LATER:
        return code
    work.refused += 1
    code = ask_stream(registry.active(), work.device, work.stream)
    if code and meaning_of(code) != LATER and work.refused >= DOUBTFUL:
        code = wait_for_device(work.device)
    return code


cdef bint is_done(Use* work) noexcept nogil:
    # Only success means it, or a device that is lost, which says so whatever it is asked.
    cdef int code = 0
    if work.event == NULL:
        code = record(work)
        if code:
            code = look_otherwise(work, code)
    if work.event != NULL:
        code = ask_use(registry.active(), work, False)
    if meaning_of(code) != LATER:
        unmark_use(registry.active(), work)  # it is recorded anew
    work.lost = work.lost + 1 if is_device_lost(code) else 0
    return code == 0 or work.lost >= CONFIRMED


# stub: class Tally:
@cython.no_gc
cdef class Tally:
    """The memory that this process has of one owner, and what of it is over and not given back.

    Attributes:
        leases: int, Leases that live, or whose memory is not given back yet.
        late: int, of those the ones that ended; late_bytes: their bytes.
    """

    cdef readonly long leases
    cdef readonly long late
    cdef readonly size_t late_bytes


@cython.no_gc
cdef class Ending:
    """The rest of a Lease that died: work to wait for, a mapping to let go of, an owner to tell.

    Attributes:
        number: int, the name that this process gave to what it opened.
        connection: int, the number of the connection on which it asked for that; 0 where it did not.
        unseen: bool, the work that uses the memory is another library's, so that no stream of it is known.
    """
    # stub: memory: Mapping | None

    cdef readonly long number
    cdef public long connection
    cdef readonly size_t nbytes
    cdef readonly Mapping memory
    cdef Stream stream
    cdef readonly Tally tally
    cdef object key
    cdef Use* works        # by streams whose work is waited for
    cdef bint listed       # works has what was under way when the lease ended
    cdef bint counted      # among the memory's users
    cdef bint ended        # the lease is dead
    cdef readonly bint is_back
    cdef public bint unseen  # what uses it is not known: the whole device is waited for, by the last lease of the mapping
    cdef int lost            # answers in a row that the device is lost

    def __init__(self, long number, size_t nbytes, Stream stream not None, Tally tally not None) -> None:
        self.number = number
        self.nbytes = nbytes
        self.stream = stream
        self.tally = tally

    def __dealloc__(self):
        with cython.critical_section(turn):
            while self.works != NULL:
                unmark_use(registry.active(), self.works)
                drop_use(&works, &self.works)

    def attach(self, key: tuple[object, ...]) -> bool | None:
        """Has the lease use what is mapped already.

        Returns:
            bool; None while the mapping is being unmapped, and has to be looked up again.
        """
        cdef Mapping mapping
        with cython.critical_section(turn):
            mapping = _mapped.get(key)
            if mapping is None:
                return False
            if mapping.closing:
                return None
            self.use(key, mapping)
        return True

    def publish(self, key: tuple[object, ...], Mapping mapping not None) -> None:
        """Has this lease and others use what it mapped, or another's mapping if that was faster."""
        cdef Mapping current
        with cython.critical_section(turn):
            current = _mapped.get(key)
            if current is None or current.closing:
                current = _mapped[key] = mapping
            self.use(key, current)

    cdef int use(self, key, Mapping memory) except -1:
        self.key = key
        self.memory = memory
        self.counted = True
        memory.users += 1
        return 0

    cdef int list_works(self) except -1:
        # The per-thread default stream is another thread's: the legacy one follows it.
        cdef uintptr_t stream = 0 if self.stream.handle == PER_THREAD else self.stream.handle
        cdef int code = add_use(&works, &self.works, self.stream.device_index, stream)
        if code == 0:
            code = copy_uses(self.memory.base, &works, &self.works)
        if code:
            raise MemoryError("the streams that use another process's memory could not be listed")
        self.listed = True
        return 0

    def is_idle(self) -> bool:
        """Tells whether no stream's work uses the memory any more.  Waits for nothing, but for a device that answers neither
        for its streams nor for events behind their work."""
        cdef Use** link
        cdef bint done
        if self.memory is None:
            return True
        if self.unseen:
            return self.counted and self.memory.users > 1 or self.is_device_idle()
        with cython.critical_section(turn):
            if not self.listed:
                self.list_works()
            link = &self.works
            while link[0] != NULL:
                with nogil:
                    done = is_done(link[0])
                if done:
                    drop_use(&works, link)
                else:
                    link = &link[0].next
        return self.works == NULL

    cdef bint is_device_idle(self):
        cdef int device = self.memory.device_index
        cdef int code
        with nogil:
            code = wait_for_device(device)
        self.lost = self.lost + 1 if is_device_lost(code) else 0
        return code == 0 or self.lost >= CONFIRMED

    def let_go(self) -> bool:
        """Unmaps what no other lease uses; False where the driver refuses, and it is to be called again."""
        cdef Mapping memory = self.memory
        cdef bint done
        if memory is None:
            return True
        with cython.critical_section(turn):
            if self.counted:
                self.counted = False
                memory.users -= 1
            if memory.users == 0 and memory.base:  # only the owner's thread comes here
                memory.closing = True
                done = memory.unmap() == 0
                if (done or memory.half_closed) and _mapped.get(self.key) is memory:
                    del _mapped[self.key]
                memory.closing = memory.half_closed
                if not done:
                    return False
        self.memory = None
        return True

    def come_back(self) -> None:
        """The owner was told, or is gone."""
        with cython.critical_section(turn):
            if self.ended and not self.is_back:
                self.is_back = True
                self.tally.leases -= 1
                self.tally.late -= 1
                self.tally.late_bytes -= self.nbytes


@cython.no_gc
cdef class Lease:
    """The lease that a Buffer of another process's memory keeps: its end puts an Ending into a queue."""

    cdef object queue
    cdef readonly Ending ending
    cdef int pid

    def __init__(self, queue: object, Ending ending not None) -> None:
        self.pid = getpid()
        self.ending = ending
        with cython.critical_section(turn):
            ending.tally.leases += 1
        self.queue = queue

    def __dealloc__(self):
        self.end()

    def end(self) -> None:
        """Gives the memory back; doing it again does nothing."""
        if self.queue is None or self.pid != getpid():  # never made, or a forked child's copy: its parent has it
            return
        with cython.critical_section(turn):
            if self.ending.ended:
                return
            self.ending.ended = True
            self.ending.tally.late += 1
            self.ending.tally.late_bytes += self.ending.nbytes
        self.queue.put(self.ending)


# --- tickets ---------------------------------------------------------------------------------------------------------

_unclaimed = SimpleQueue()  # (name, pid, loan) of tickets that will not be used, whose owners have to be told


@cython.no_gc
cdef class Claim:
    """A ticket that came here: unless it is settled, its end has the owner told that it will not be used."""

    cdef object ticket
    cdef int pid

    def __init__(self, str name, int pid, long loan) -> None:
        self.pid = getpid()
        self.ticket = (name, pid, loan)

    def __dealloc__(self):
        self.decline()

    def settle(self) -> None:
        """It was used."""
        self.ticket = None

    def decline(self) -> None:
        ticket, self.ticket = self.ticket, None
        if ticket is not None and self.pid == getpid():
            _unclaimed.put(ticket)


def next_unclaimed() -> tuple[str, int, int] | None:
    """(name, pid, loan) of a ticket whose owner has to be told that it will not be used; None."""
    try:
        return _unclaimed.get_nowait()
    except Empty:
        return None


# stub: def rebuild(open_ticket: Callable[..., object], values: tuple[object, ...], layout: tuple[object, ...] | None) -> object: ...  # no-cython-lint
def rebuild(open_ticket: Callable[..., object], tuple values not None, layout: tuple[object, ...] | None) -> object:
    """Returns what multiprocessing unpickles a Buffer or Array by: the ticket is claimed before anything can be interrupted.

    Arguments:
        open_ticket: handles.open_ticket, which gets the values of a Place, the layout and the Claim.
    """
    claim = Claim(values[0], values[1], values[2])
    return open_ticket(values, layout, claim)


def statistics() -> dict[str, int]:
    """Returns how many Buffers of other processes this one has opened, and how many mappings they lie on."""
    cdef Mapping memory
    cdef long opened = 0
    for memory in list(_mapped.values()):
        opened += memory.users
    return {"opened": opened, "mapped": len(_mapped)}


def forget_leases() -> object:
    """In a forked child: all of it is the parent's.

    Returns:
        What has to be kept for ever, so that nothing of it ends here.
    """
    global _mapped, _unclaimed, turn
    turn = object()  # another thread may have been in the other's
    leases_and_pages = (_mapped, _unclaimed)
    _mapped, _unclaimed = {}, SimpleQueue()
    return leases_and_pages


# --- loans ------------------------------------------------------------------------------------------------------------
# What this process lends: each loan is the memory and the event that says when others may use it.
#
# A handle keeps its loan; a ticket, which nobody keeps here, is kept by a table until it is opened.  So whatever is
# interrupted between the making of a loan and that of its handle leaves nothing behind.  Each call here is one step.

cdef enum:
    MOST_EVENTS = 512  # of one process; a driver has no more than some thousands for all

cdef dict _loans = {}         # number -> weak reference to a Loan
cdef dict _tickets = {}       # number -> Loan that nobody opened yet
cdef dict _spare_events = {}  # device -> Events of loans that ended
cdef long _event_count = 0    # of loans, and spare ones
cdef long _last_number = 0


@cython.no_gc
cdef class Loan:
    """Memory that others may open, and the event behind the owner's work.

    Attributes:
        number: int, by which others ask for it.
        memory: SharedBytes.
        event: Event; None where the work was waited for.
        ticket: bool, opened once.
    """
    # stub: memory: SharedBytes
    # stub: event: Event | None

    cdef readonly long number
    cdef readonly object memory
    cdef readonly Event event
    cdef readonly bint ticket
    cdef int event_device
    cdef int pid
    cdef object __weakref__

    def __init__(self, memory: SharedBytes, bint ticket) -> None:
        if not isinstance(memory, SharedBytes):
            raise TypeError(f"memory is of type {type(memory).__name__}; it has to be a SharedBytes")
        self.pid = getpid()
        self.memory = memory
        self.ticket = ticket
        self.number = add_in_turn(&_last_number, 1)

    def __reduce__(self):
        refuse_copy(self, "it is of this process; its MemoryHandle pickles")

    def __dealloc__(self):
        if self.pid != getpid():
            return
        _loans.pop(self.number, None)
        if self.event is not None:
            _spare_events.setdefault(self.event_device, []).append(self.event)

    def record(self, Stream stream not None) -> bool:
        """Records an event of the loan behind a stream's work; False where the process has too many of them."""
        global _event_count
        cdef list spare = _spare_events.setdefault(stream.device_index, [])
        with cython.critical_section(turn):
            if self.event is None:
                if not spare and _event_count >= MOST_EVENTS:
                    return False
                if spare:
                    self.event = spare.pop()
                else:
                    self.event = Event(interprocess=True)
                    _event_count += 1
                self.event_device = stream.device_index
        self.event.record(stream)
        return True

    def offer(self) -> None:
        """From now on others find it: a handle while somebody keeps the Loan, a ticket until it is taken."""
        if self.ticket:
            _tickets[self.number] = self
        else:
            _loans[self.number] = weakref.ref(self)

    def withdraw(self) -> None:
        """Nobody finds it any more."""
        _tickets.pop(self.number, None)
        _loans.pop(self.number, None)


def find(long number) -> Loan | None:
    """The loan of that number, or None; who finds a ticket has taken it."""
    reference = _loans.get(number)
    return _tickets.pop(number, None) if reference is None else reference()


def drop_ticket(long number) -> Loan | None:
    """Takes back a ticket that will not be opened; the Loan, to be let go of, or None."""
    return _tickets.pop(number, None)


def drop_tickets() -> list[Loan]:
    """Takes back all tickets.

    Returns:
        list of Loans.
    """
    with cython.critical_section(turn):
        loans = list(_tickets.values())
        _tickets.clear()
    return loans


def live() -> list[Loan]:
    """Returns a list of the loans that others may open."""
    loans = [reference() for reference in list(_loans.values())]
    return [loan for loan in loans if loan is not None] + list(_tickets.values())


def forget_loans() -> object:
    """In a forked child, which may not use its parent's memory.

    Returns:
        What has to be kept for ever, so that nothing of it ends here.
    """
    global _loans, _tickets, _spare_events, _event_count
    loans_and_events = (live(), _spare_events)
    _loans, _tickets, _spare_events, _event_count = {}, {}, {}, 0
    return loans_and_events


# --- page-locked memory ----------------------------------------------------------------------------------------

def file_of_pinned(PinnedBuffer memory) -> tuple[Descriptor | None, int]:
    """The file of memory that was made to be shared, and its bytes; of no bytes there is none.

    Raises:
        ValueError, NotSupportedError: as of PinnedBuffer.share().
    """
    cdef uintptr_t address = memory.ptr
    cdef int file
    if not memory.live:
        raise_freed(memory, "this")
    if address == 0:
        return None, 0
    with nogil:
        file = pinned_file(address)
    descriptor = own(file) if file >= 0 else None
    if not memory.live or memory.ptr != address:  # by another thread meanwhile: the address may be other memory's
        raise_freed(memory, "this")
    if descriptor is None:
        raise NotSupportedError(
            f"{memory!r} cannot be shared with other processes: it was not made for that; make it by "
            "PinnedBuffer(..., shared=True)", NOT_SUPPORTED, "NOT_SUPPORTED", "share",
        )
    return descriptor, memory.nbytes


def open_pinned(file: int, size_t nbytes, device: DeviceArgument | None) -> PinnedBuffer:
    """A PinnedBuffer on a file of page-locked memory, which this process's driver locks too; the file stays the caller's.

    Raises:
        ValueError: it is no such file.
        CudaError: the driver refused.
    """
    cdef PinnedBuffer memory = PinnedBuffer.__new__(PinnedBuffer)
    cdef size_t size = 0
    cdef int number = file, ordinal = -1 if device is None else ordinal_of(device), code
    with nogil:
        code = adopt_pinned(ordinal, number, &size, &memory.ptr)
    if code == INVALID_VALUE or (code == 0 and size < nbytes):
        raise ValueError(f"the other process sent a file of {size} bytes, which is none of {nbytes} page-locked ones")
    if code:
        raise_status(code, "host_register", ("size", size))
    memory.nbytes = nbytes
    memory.live = True
    return memory
