# The host's memory whose pages are made at once: whether there is room for them, since making them would not fail, but
# have the system end a process, most likely this one; memory that huge pages fit, and files of memory; and how many threads
# make them fast.
cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <linux/falloc.h>
    #include <sched.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static char* accelrt_read_text(const char* path, char* text, size_t room) {  /* NULL where there is none */
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = file < 0 ? -1 : read(file, text, room - 1);
        if (file >= 0) close(file);
        if (length <= 0) return NULL;
        text[length] = 0;
        return text;
    }
    static size_t accelrt_number_behind(const char* text, const char* word, size_t otherwise) {
        const char* start = text != NULL ? strstr(text, word) : NULL;
        char* end;
        unsigned long long number;
        if (start == NULL) return otherwise;
        number = strtoull(start + strlen(word), &end, 10);
        return end == start + strlen(word) || number > SIZE_MAX ? otherwise : (size_t)number;
    }
    /* Bytes that the system has for pages, with swap and within a container's limit; SIZE_MAX where it does not tell. */
    static size_t accelrt_host_room(void) {
        char room[4096], *text = accelrt_read_text("/proc/meminfo", room, sizeof room);  /* in KiB: proc_meminfo(5) */
        size_t kib = accelrt_number_behind(text, "MemAvailable:", SIZE_MAX >> 1)
                     + accelrt_number_behind(text, "SwapFree:", 0), limit;
        text = accelrt_read_text("/sys/fs/cgroup/memory.max", room, sizeof room);  /* or "max" */
        limit = accelrt_number_behind(text, "", SIZE_MAX);
        return kib > limit >> 10 ? limit : kib << 10;
    }
    static int accelrt_has_room(size_t size) {  /* less than 64 MiB are not worth a look */
        return size >> 26 == 0 || size <= accelrt_host_room();
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
    /* A file of memory that nobody can make smaller under a mapping, and whose pages are there; or -1. */
    static int accelrt_make_file(size_t size) {
        int file = memfd_create("accelrt-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (file >= 0 && !fallocate(file, 0, 0, (off_t)size)
                && !fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
            return file;
        if (file >= 0)
            close(file);
        return -1;
    }
    static size_t accelrt_size_of_file(int file) {  /* 0 where it is none of those */
        struct stat found;
        int seals = fcntl(file, F_GET_SEALS);
        return seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(file, &found) ? 0 : (size_t)found.st_size;
    }
    /* The pages of a part go back to the system; it reads as zeros.  Where that fails, it costs pages of the host alone. */
    static void accelrt_empty_part(int file, long offset, long size) {
        syscall(SYS_fallocate, file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
    }
    static int accelrt_copy_file(int file) { return fcntl(file, F_DUPFD_CLOEXEC, 3); }
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
    size_t host_room "accelrt_host_room" () noexcept nogil
    bint has_room "accelrt_has_room" (size_t size) noexcept nogil
    int make_file "accelrt_make_file" (size_t size) noexcept nogil
    size_t size_of_file "accelrt_size_of_file" (int file) noexcept nogil
    void empty_part "accelrt_empty_part" (int file, long offset, long size) noexcept nogil
    int copy_file "accelrt_copy_file" (int file) noexcept nogil
    int close_file "close" (int file) noexcept nogil
