# File descriptors that accelrt keeps, which code that is not accelrt's may close: a daemon closes all that it inherited, and
# has files of its own under their numbers then.
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifndef accelrt_keep_file
    #define accelrt_keep_file
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <stdint.h>
    #include <sys/stat.h>
    #include <unistd.h>
    /* 0, 1 and 2 are standard streams, which anybody writes to, also where the process was started without them. */
    static inline int accelrt_lift(int number) {
        int lifted = number >= 0 && number < 3 ? fcntl(number, F_DUPFD_CLOEXEC, 3) : -1;
        if (lifted < 0) return number;
        close(number);
        return lifted;
    }
    static inline uint64_t accelrt_mark(int number) {  /* 31 bits of which file it is; 0: it is not open */
        struct stat file;
        if (fstat(number, &file)) return 0;
        return (((uint64_t)file.st_ino + (uint64_t)file.st_dev * 31) * 0x9E3779B97F4A7C15u >> 33) | 1;
    }
    static inline int64_t accelrt_keep(int number) {
        return number < 0 ? number : (int64_t)(accelrt_mark(number) << 32 | (uint32_t)number);
    }
    static inline int accelrt_number_of(int64_t kept) {
        int number = (int)kept;
        return kept < 0 || accelrt_mark(number) != (uint64_t)kept >> 32 ? -1 : number;
    }
    static inline void accelrt_close_kept(int64_t kept) {
        int number = accelrt_number_of(kept);
        if (number >= 0) close(number);
    }
    #endif
    """
    # A descriptor's number, and a mark of the file that it is of; below 0: none.
    ctypedef int64_t KeptFile "int64_t"

    # The same file under a number above 2; closed on exec.
    int lift "accelrt_lift" (int number) noexcept nogil
    # A number below 0 stays as it is.
    KeptFile keep_number "accelrt_keep" (int number) noexcept nogil
    # -1 where it is none, or another file's by now.
    int number_of "accelrt_number_of" (KeptFile kept) noexcept nogil
    # Nothing happens where the number is another file's by now.
    void close_kept "accelrt_close_kept" (KeptFile kept) noexcept nogil
