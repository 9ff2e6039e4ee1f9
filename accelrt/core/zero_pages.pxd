# Zeros that cost nothing before they are written to, for records that mostly stay empty and are never given back.
# calloc may answer with memory that was used before, which it then writes to from end to end.
cdef extern from *:
    """
    #include <sys/mman.h>
    static void* accelrt_fresh(size_t size) {
        void* start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) return NULL;
        madvise(start, size, MADV_NOHUGEPAGE);  /* which would be written to whole */
        return start;
    }
    """
    void* take_fresh "accelrt_fresh" (size_t size) noexcept nogil  # whole pages of the host's; NULL where it has none
