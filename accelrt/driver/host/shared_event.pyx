"""Events of several processes on the host device: a page of a memory file that each of them maps.

A handle names the file by process and descriptor; whoever opens it does so in /proc, where the system asks whether the
one process may look into the other.  A record takes the next number, and the thread that reaches it writes that it is done
and wakes who sleeps.  A process that dies with a record under way never writes it: waiters look after it now and then.
"""
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.status cimport INVALID_CONTEXT, INVALID_HANDLE, NOT_PERMITTED, OPERATING_SYSTEM, OUT_OF_MEMORY

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <linux/memfd.h>
    #include <poll.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #define accelrt_load(place) __atomic_load_n(place, __ATOMIC_SEQ_CST)
    #define accelrt_store(place, value) __atomic_store_n(place, value, __ATOMIC_SEQ_CST)
    #define accelrt_next(place) __atomic_add_fetch(place, 1, __ATOMIC_SEQ_CST)
    static void accelrt_raise(uint64_t *place, uint64_t value) {
        uint64_t before = __atomic_load_n(place, __ATOMIC_SEQ_CST);
        while (before < value
               && !__atomic_compare_exchange_n(place, &before, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    }
    static int accelrt_event_file(void) {  /* or -1 */
        int file = (int)syscall(SYS_memfd_create, "accelrt-event", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, 4096)) {
            close(file);
            file = -1;
        }
        return file;
    }
    static int accelrt_open_file_of(int process, int file) {  /* or -errno */
        char path[64];
        int opened;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
        opened = open(path, O_RDWR | O_CLOEXEC);
        return opened < 0 ? -errno : opened;
    }
    static uint64_t accelrt_inode(int file) {
        struct stat found;
        return fstat(file, &found) ? 0 : (uint64_t)found.st_ino ^ ((uint64_t)found.st_dev << 40);
    }
    static int accelrt_is_gone(int process) {  /* ended, whether or not its parent has asked */
        struct pollfd asked = {-1, POLLIN, 0};
        int gone;
        asked.fd = (int)syscall(434 /* pidfd_open */, process, 0);
        if (asked.fd < 0) return errno == ESRCH || (errno == ENOSYS && kill(process, 0) && errno == ESRCH);
        gone = poll(&asked, 1, 0) > 0;
        close(asked.fd);
        return gone;
    }
    static void accelrt_futex_sleep(uint32_t *word, uint32_t seen) {  /* for 20 ms at most */
        struct timespec most = {0, 20000000};
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    static void accelrt_futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
    """
    uint64_t load_number "accelrt_load" (uint64_t* place) noexcept nogil
    uint32_t load_word "accelrt_load" (uint32_t* place) noexcept nogil
    int load_int "accelrt_load" (int* place) noexcept nogil
    void store_int "accelrt_store" (int* place, int value) noexcept nogil
    uint64_t next_number "accelrt_next" (uint64_t* place) noexcept nogil
    uint32_t next_word "accelrt_next" (uint32_t* place) noexcept nogil
    void raise_to "accelrt_raise" (uint64_t* place, uint64_t value) noexcept nogil
    int event_file "accelrt_event_file" () noexcept nogil
    int open_file_of "accelrt_open_file_of" (int process, int file) noexcept nogil
    uint64_t inode_of "accelrt_inode" (int file) noexcept nogil
    bint is_gone "accelrt_is_gone" (int process) noexcept nogil
    void futex_sleep "accelrt_futex_sleep" (uint32_t* word, uint32_t seen) noexcept nogil
    void futex_wake "accelrt_futex_wake" (uint32_t* word) noexcept nogil
    int getpid() noexcept nogil
    int close_file "close" (int file) noexcept nogil
    void* mmap(void* address, size_t size, int protection, int flags, int file, long offset) noexcept nogil
    int munmap(void* address, size_t size) noexcept nogil
    void* MAP_FAILED
    enum:
        EACCES
        EPERM
        EMFILE
        ENFILE
        MAP_SHARED
        PROT_READ
        PROT_WRITE

cdef uint64_t EVENT_FILE = 0x6C65766574726C61
cdef uint64_t MEMORY_FILE = 0x6C656D6574726C61


cdef int name_file(int file, uint64_t purpose, long offset, size_t size, char* out_ipc) noexcept nogil:
    cdef FileName name
    memset(&name, 0, sizeof(name))
    name.purpose = purpose
    name.process = getpid()
    name.file = file
    name.inode = inode_of(file)
    name.offset = offset
    name.size = size
    memset(out_ipc, 0, IPC_BYTES)
    memcpy(out_ipc, &name, sizeof(name))
    return 0


cdef int open_named(const char* handle, uint64_t purpose, FileName* out_name, int* out_file) noexcept nogil:
    cdef int file
    memcpy(out_name, handle, sizeof(FileName))
    if out_name.purpose != purpose:
        return INVALID_HANDLE
    if out_name.process == getpid():
        return INVALID_CONTEXT
    file = open_file_of(out_name.process, out_name.file)
    if file < 0:
        if file == -EACCES or file == -EPERM:
            return NOT_PERMITTED
        return OPERATING_SYSTEM if file == -EMFILE or file == -ENFILE else INVALID_HANDLE
    if inode_of(file) != out_name.inode:  # the number was given to another file since
        close_file(file)
        return INVALID_HANDLE
    out_file[0] = file
    return 0


cdef SharedEvent* shared_on(int file) noexcept nogil:
    # Takes the file, also where it answers NULL.
    cdef SharedEvent* made = <SharedEvent*>calloc(1, sizeof(SharedEvent))
    cdef void* words = mmap(NULL, sizeof(EventWords), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
    if made == NULL or words == MAP_FAILED:
        if words != MAP_FAILED:
            munmap(words, sizeof(EventWords))
        free(made)
        close_file(file)
        return NULL
    made.words = <EventWords*>words
    made.file = file
    made.holders = 1
    return made


cdef SharedEvent* make_shared_event() noexcept nogil:
    cdef int file = event_file()
    return shared_on(file) if file >= 0 else NULL


cdef int open_shared_event(const char* handle, SharedEvent** out_event) noexcept nogil:
    cdef FileName name
    cdef int file = -1
    cdef int code = open_named(handle, EVENT_FILE, &name, &file)
    if code:
        return code
    out_event[0] = shared_on(file)
    return 0 if out_event[0] != NULL else OUT_OF_MEMORY


cdef void drop_shared_event(SharedEvent* event) noexcept nogil:
    if event == NULL:
        return
    event.holders -= 1
    if event.holders:
        return
    munmap(event.words, sizeof(EventWords))
    close_file(event.file)
    free(event)


cdef uint64_t begin_record(SharedEvent* event) noexcept nogil:
    store_int(&event.words.recorder, getpid())
    return next_number(&event.words.recorded)


cdef void complete_record(SharedEvent* event, uint64_t number) noexcept nogil:
    raise_to(&event.words.completed, number)
    next_word(&event.words.wakeups)
    futex_wake(&event.words.wakeups)


cdef uint64_t last_record(SharedEvent* event) noexcept nogil:
    return load_number(&event.words.recorded)


cdef bint is_record_done(SharedEvent* event, uint64_t number) noexcept nogil:
    cdef int recorder
    if load_number(&event.words.completed) >= number:
        return True
    recorder = load_int(&event.words.recorder)
    return recorder != getpid() and is_gone(recorder)


cdef void sleep_on(SharedEvent* event, uint64_t number) noexcept nogil:
    cdef uint32_t seen = load_word(&event.words.wakeups)
    while not is_record_done(event, number):
        futex_sleep(&event.words.wakeups, seen)
        seen = load_word(&event.words.wakeups)
