/* The sum of an array's bytes after a round trip through device memory, over two streams.
 *
 * Each call of accelrt's returns a status code.  `code` keeps the first that is not SUCCESS, after which nothing more
 * is put into a stream; what was taken goes back in any case. */
#include <accelrt.h>

static int round_trip(int device, uintptr_t upload, uintptr_t download, uintptr_t done, uintptr_t memory,
                      uintptr_t out, const unsigned char *data, size_t size) {
    int code = accelrt_copy(device, upload, memory, (uintptr_t)data, size);
    if (code == ACCELRT_SUCCESS)
        code = accelrt_event_record(device, done, upload);
    if (code == ACCELRT_SUCCESS) /* the second stream waits for the event; this thread goes on */
        code = accelrt_stream_wait_event(device, download, done);
    if (code == ACCELRT_SUCCESS)
        code = accelrt_copy(device, download, out, memory, size);
    if (code == ACCELRT_SUCCESS) /* once released, it is not handed out before the second stream is past here */
        code = accelrt_record_stream(device, memory, download);
    return code;
}

/* Returns a status code; any thread may call, with or without the GIL. */
int checksum(int device, const unsigned char *data, size_t size, uint64_t *out_sum) {
    uintptr_t upload = 0, download = 0, done = 0, memory = 0, out = 0;
    size_t index;
    int code = accelrt_import();
    if (code == ACCELRT_SUCCESS)
        code = accelrt_stream_lease(device, 0, &upload);
    if (code == ACCELRT_SUCCESS)
        code = accelrt_stream_lease(device, 0, &download);
    if (code == ACCELRT_SUCCESS)
        code = accelrt_event_lease(device, 0, 0, &done);
    if (code == ACCELRT_SUCCESS)
        code = accelrt_allocate(device, size, upload, &memory);
    if (code == ACCELRT_SUCCESS)
        code = accelrt_allocate_pinned(size, &out);
    if (code == ACCELRT_SUCCESS)
        code = round_trip(device, upload, download, done, memory, out, data, size);
    if (download) { /* whatever failed: what the work writes to must not go back before it is done */
        int waited = accelrt_stream_synchronize(device, download);
        code = code ? code : waited;
    }
    if (code == ACCELRT_SUCCESS)
        for (*out_sum = 0, index = 0; index < size; index++)
            *out_sum += ((const unsigned char *)out)[index];

    accelrt_release_pinned(out); /* 0 does nothing */
    accelrt_release(device, memory);
    if (done)
        accelrt_event_return(device, done);
    if (download)
        accelrt_stream_return(device, download);
    if (upload)
        accelrt_stream_return(device, upload);
    return code;
}

/* For the caller in Python. */
const char *explain(int code) { return accelrt_status_text(code); }
