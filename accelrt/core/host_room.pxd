# Whether the host has room for memory whose pages are made at once.  Where it has not, making them would not fail: the
# system would end a process, most likely this one.
cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
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
    """
    bint has_room "accelrt_has_room" (size_t size) noexcept nogil
