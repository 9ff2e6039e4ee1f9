# The host's memory whose pages are made at once: whether there is room for them, since making them would not fail, but
# have the system end a process, most likely this one; memory that huge pages fit; and how many threads make them fast.
cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <sched.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* The number behind a word of a file, or without a word at its start; SIZE_MAX where it has none. */
    static size_t accelrt_number_in(const char* path, const char* word) {
        char text[4096], *start = text, *end;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
        unsigned long long number;
        if (file >= 0) close(file);
        if (length <= 0) return SIZE_MAX;
        text[length] = 0;
        if (word != NULL && (start = strstr(text, word)) == NULL) return SIZE_MAX;
        start += word != NULL ? strlen(word) : 0;
        number = strtoull(start, &end, 10);
        return end == start || number > SIZE_MAX ? SIZE_MAX : (size_t)number;
    }
    static int accelrt_has_room(size_t size) {
        size_t available, swap;
        if (size >> 26 == 0) return 1;  /* less than 64 MiB are not worth a look */
        available = accelrt_number_in("/proc/meminfo", "MemAvailable:");  /* in KiB: proc_meminfo(5) */
        swap = accelrt_number_in("/proc/meminfo", "SwapFree:");
        if (available != SIZE_MAX && size >> 10 > available + (swap != SIZE_MAX ? swap : 0)) return 0;
        return size <= accelrt_number_in("/sys/fs/cgroup/memory.max", NULL);  /* a container's limit, or "max" */
    }
    /* The system's memory policies (set_mempolicy(2)): pages that are not there yet are made on the node, if it has any. */
    static void accelrt_prefer_node(void* address, size_t size, int node) {
        unsigned long nodes[16] = {0};
        if (node < 0 || (size_t)node >= 8 * sizeof nodes)
            return;
        nodes[node / 64] = 1ul << node % 64;
        syscall(SYS_mbind, address, size, 1 /* MPOL_PREFERRED */, nodes, 8 * sizeof nodes, 0);
    }
    /* Private memory, which starts where a huge page may; NULL where the system has none.  munmap takes it back.  A fork
       copies what is page-locked for the child, unless it is unshared: then the child has none of it. */
    static void* accelrt_map_pages(size_t size, int unshared) {
        const size_t huge = (size_t)2 << 20;
        size_t more = size < huge ? 0 : huge, before;
        char* start = mmap(NULL, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) return NULL;
        before = more == 0 ? 0 : -(uintptr_t)start % huge;
        if (before) munmap(start, before);
        if (more - before) munmap(start + before + size, more - before);
        if (more) madvise(start + before, size, MADV_HUGEPAGE);  /* a wish: an eighth of the time */
        if (unshared) madvise(start + before, size, MADV_DONTFORK);
        return start + before;
    }
    static int accelrt_threads_for(size_t size) {  /* one for each 4 MiB, 16 at most: more were no faster */
        cpu_set_t own;
        size_t most = sched_getaffinity(0, sizeof own, &own) ? 1 : CPU_COUNT(&own);
        if (most > 16) most = 16;
        return size >> 22 < most ? (int)(size >> 22) + 1 : (int)most;
    }
    """
    void prefer_node "accelrt_prefer_node" (void* address, size_t size, int node) noexcept nogil
    void* map_pages "accelrt_map_pages" (size_t size, bint unshared) noexcept nogil
    int threads_for "accelrt_threads_for" (size_t size) noexcept nogil
    bint has_room "accelrt_has_room" (size_t size) noexcept nogil
