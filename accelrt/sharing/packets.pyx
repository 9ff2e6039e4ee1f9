"""Sockets of packets with file descriptors, whose waits all have a limit.

A packet is sent or received by one call, which gives up the GIL once.  Whatever a call took from the system belongs to
a Descriptor before Python code runs again, so that an interruption loses none.
"""
from libc.errno cimport EAGAIN, EINTR

from cpython.exc cimport PyErr_CheckSignals

from accelrt.core.owners cimport Descriptor, own, own_all
from accelrt.core.process import call_at_fork
from accelrt.status cimport refuse_copy

import os
import weakref

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
    int usleep(unsigned int microseconds) noexcept nogil
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

    def fileno(self):
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

    def close(self):
        self.file.release()

    def abandon(self):
        """Forgets the socket: its number is another file's by now."""
        self.file.number = -1


cdef class Listener(Endpoint):
    """A socket in the abstract namespace that other processes connect to."""

    def __init__(self, str name, int backlog=128):
        cdef bytes text = name.encode()
        cdef int code
        if not 0 < len(text) <= LONGEST_NAME:
            raise ValueError(f"{name!r} is no name of a socket")
        self.open()
        code = listen_at(self.file.number, text, len(text), backlog)
        if code:
            self.close()
            raise_errno(code, f"nothing can listen at {name!r}")

    def accept(self):
        """The next connection; None where nobody waits for one.

        Raises:
            OSError: as of accept(2); what waits stays in the queue.
        """
        cdef Connection made = Connection.__new__(Connection)
        cdef int file, code
        with nogil:
            code = accept_one(self.file.number, &file)
        if code == EAGAIN:
            return None
        if code:
            raise_errno(code, "a connection was not accepted")
        made.adopt(file)
        return made


cdef class Connection(Endpoint):
    """One end of a connection.

    Attributes:
        deadline: float, of time.monotonic(), until when each call waits that is given no other; FOREVER at first.
        number: int, the caller's.
    """

    cdef public double deadline
    cdef public long number

    def __cinit__(self):
        self.deadline = FOREVER

    def __init__(self):
        raise TypeError("a Connection is made by connect() or Listener.accept()")

    @property
    def peer(self):
        """The process at the other end, (pid, uid): that which connected, or which listens."""
        cdef int pid = 0, uid = 0
        cdef int code = peer_of(self.file.number, &pid, &uid)
        if code:
            raise_errno(code, "the process at the other end is not known")
        return pid, uid

    def open_life(self):
        """A Descriptor that can be read once the process at the other end has ended; None where the system has none."""
        cdef int life = pidfd_of_peer(self.file.number)
        return own(life) if life >= 0 else None

    def shutdown(self):
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

    def wait_readable(self, double deadline):
        """Whether a packet came, or the other end was closed, by the deadline."""
        cdef int code = EAGAIN
        while code:
            with nogil:
                code = await_file(self.file.number, POLLIN, deadline)
            if code == ETIMEDOUT:
                return False
            self.check_wait(code, "nothing came")
        return True

    def send(self, bytes packet not None, files=(), deadline=None):
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
                    usleep(1000)
                    code = EINTR
            self.check_wait(code, "nothing could be sent")
        return None

    def receive(self, deadline=None):
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

    def send_bytes(self, packet):
        self.send(packet)

    def recv_bytes(self, maxlength=LARGEST):
        packet, files = self.receive()
        files.clear()  # which a challenge has none of
        if not packet:
            raise EOFError("the connection was closed")
        if len(packet) > maxlength:
            raise OSError(f"a packet of {len(packet)} bytes; {maxlength} were expected")
        return packet


def connect(str name, double deadline):
    """A connection to the process that listens by that name.

    Raises:
        TimeoutError: it accepts nobody.
        ConnectionRefusedError: nobody listens.
        OSError: as of socket(2) and connect(2).
    """
    cdef Connection made = Connection.__new__(Connection)
    cdef bytes text = name.encode()
    cdef const char* data = text
    cdef size_t length = len(text)
    cdef int code = EAGAIN
    if not 0 < length <= LONGEST_NAME:
        raise ValueError(f"{name!r} is no name of a socket")
    made.open()
    while code:
        with nogil:
            code = connect_to(made.file.number, data, length)
            if code == EAGAIN:
                usleep(2000)
                code = ETIMEDOUT if clock_now() >= deadline else EINTR
        made.check_wait(code, f"nobody answered at {name!r}")
    return made


def forget():
    """In a forked child, which has none of the sockets that its parent opened: closes what it inherited."""
    cdef Descriptor file
    for file in _open:
        file.release()


call_at_fork("sharing.packets", "connections", child=forget)
