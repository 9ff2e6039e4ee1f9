"""What a Cython author does with accelrt's captures: by threads that Python never sees, and behind a class."""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from accelrt.api cimport (
    API_REVISION, CAPTURE_THREAD_LOCAL, GRAPH_CAPTURED, GRAPH_READY, INVALID_VALUE, NO_HOST_MEMORY,
    allocate, api_revision, capture_begin, capture_end, capture_mode_exchange, capture_status, check_status, copy,
    event_create, event_destroy, event_elapsed, event_lease, event_record, event_return, event_synchronize, fill,
    graph_destroy, graph_instantiate, graph_launch, graph_pool, graph_raw, graph_status, import_accelrt,
    record_pinned_stream, record_stream, release,
    status_name, stream_lease, stream_query, stream_return, stream_synchronize, stream_wait_event, stream_wait_stream,
)

import_accelrt()

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    int pthread_create(pthread_t* thread, const void* attributes, void* (*start)(void*) noexcept nogil, void* job)
    int pthread_join(pthread_t thread, void** result)

cdef struct Job:
    int device
    int number        # of the thread; what it computes depends on it
    int rounds
    size_t size
    unsigned char* host
    uintptr_t stream, side, fork, join, given, taken, graph
    int code          # the first status that was not SUCCESS
    size_t nodes
    long wrong        # bytes that came out wrong


cdef int prepare(Job* job) noexcept nogil:
    cdef int code = stream_lease(job.device, 0, &job.stream)
    if code == 0:
        code = stream_lease(job.device, -1, &job.side)
    if code == 0:
        code = event_lease(job.device, False, False, &job.fork)
    if code == 0:
        code = event_lease(job.device, False, True, &job.join)
    if code == 0:
        code = allocate(job.device, job.size, job.stream, &job.given)
    if code == 0:
        code = allocate(job.device, job.size, job.stream, &job.taken)
    job.host = <unsigned char*>calloc(1, job.size)
    return code if job.host != NULL else NO_HOST_MEMORY


cdef int record_work(Job* job) noexcept nogil:
    # The first half of what is given, by way of memory of the capture's own; behind it the thread's number, put
    # there by a second stream that joins the capture.
    cdef uintptr_t between = 0
    cdef size_t half = job.size // 2
    cdef int code = allocate(job.device, half, job.stream, &between)
    if code == 0:
        code = event_record(job.device, job.fork, job.stream)
    if code == 0:
        code = stream_wait_event(job.device, job.side, job.fork)
    if code == 0:
        code = fill(job.device, job.side, job.taken + half, job.number, 1, job.size - half)
    if code == 0:
        code = copy(job.device, job.stream, between, job.given, half)
    if code == 0:
        code = copy(job.device, job.stream, job.taken, between, half)
    if code == 0:
        code = event_record(job.device, job.join, job.side)
    if code == 0:
        code = stream_wait_event(job.device, job.stream, job.join)
    release(job.device, between)
    return code


cdef int make_graph(Job* job) noexcept nogil:
    cdef int state = 0, code, ended
    code = capture_begin(job.device, job.stream, CAPTURE_THREAD_LOCAL, 0, 0, &job.graph)
    if code:
        return code
    code = record_work(job)
    ended = capture_end(job.graph)
    code = code if code else ended
    if code == 0:
        code = graph_status(job.graph, &state, &job.nodes)
    if code == 0 and state != GRAPH_CAPTURED:
        code = INVALID_VALUE
    if code == 0:
        code = graph_instantiate(job.graph)
    if code == 0:
        code = graph_status(job.graph, &state, &job.nodes)
    return INVALID_VALUE if code == 0 and state != GRAPH_READY else code


cdef int run_round(Job* job, int number) noexcept nogil:
    cdef unsigned char expected = <unsigned char>(job.number * 31 + number)
    cdef size_t index
    cdef int code
    memset(job.host, expected, job.size)
    code = copy(job.device, job.stream, job.given, <uintptr_t>job.host, job.size)
    if code == 0:
        code = graph_launch(job.graph, job.stream)
    if code == 0:
        code = copy(job.device, job.stream, <uintptr_t>job.host, job.taken, job.size)
    if code == 0:
        code = stream_synchronize(job.device, job.stream)
    for index in range(job.size):
        job.wrong += job.host[index] != (expected if index < job.size // 2 else job.number)
    return code


cdef void* work(void* argument) noexcept nogil:
    cdef Job* job = <Job*>argument
    cdef int number, code = prepare(job)
    if code == 0:
        code = make_graph(job)
    for number in range(job.rounds):
        if code == 0:
            code = run_round(job, number)
    if job.graph and graph_destroy(job.graph) and code == 0:
        code = INVALID_VALUE
    release(job.device, job.given)
    release(job.device, job.taken)
    event_return(job.device, job.fork)
    event_return(job.device, job.join)
    stream_return(job.device, job.stream)
    stream_return(job.device, job.side)
    free(job.host)
    job.code = code
    return NULL


def on_threads(int device, int count, int rounds, size_t size):
    """Captures, launches and checks on threads that Python never sees; (status name, nodes, wrong bytes) of each."""
    cdef Job* jobs = <Job*>calloc(count, sizeof(Job))
    cdef pthread_t* threads = <pthread_t*>calloc(count, sizeof(pthread_t))
    cdef int index, started = 0
    if jobs == NULL or threads == NULL:
        raise MemoryError
    with nogil:
        for index in range(count):
            jobs[index].device, jobs[index].number = device, index + 1
            jobs[index].rounds, jobs[index].size = rounds, size
            if pthread_create(&threads[index], NULL, work, &jobs[index]):
                break
            started += 1
        for index in range(started):
            pthread_join(threads[index], NULL)
    answer = [(status_name(jobs[index].code).decode(), jobs[index].nodes, jobs[index].wrong) for index in range(started)]
    free(jobs)
    free(threads)
    return answer


cdef class BareGraph:
    """A graph behind a class, whose border turns codes into exceptions."""

    cdef uintptr_t graph

    def begin(self, int device, uintptr_t stream, int mode=CAPTURE_THREAD_LOCAL, uint64_t id0=0, uint64_t id1=0):
        with nogil:
            check_status(capture_begin(device, stream, mode, id0, id1, &self.graph), b"capture_begin")

    def end(self):
        with nogil:
            check_status(capture_end(self.graph), b"capture_end")

    def instantiate(self):
        with nogil:
            check_status(graph_instantiate(self.graph), b"graph_instantiate")

    def launch(self, uintptr_t stream):
        with nogil:
            check_status(graph_launch(self.graph, stream), b"graph_launch")

    def destroy(self):
        with nogil:
            check_status(graph_destroy(self.graph), b"graph_destroy")

    def is_begun(self):
        return self.graph != 0

    def status(self):
        cdef int state = -1
        cdef size_t nodes = 0
        check_status(graph_status(self.graph, &state, &nodes), b"graph_status")
        return state, nodes

    def pool(self):
        cdef uint64_t id0 = 0, id1 = 0
        check_status(graph_pool(self.graph, &id0, &id1), b"graph_pool")
        return id0, id1

    def raw(self):
        cdef uintptr_t raw = 0, raw_exec = 0
        check_status(graph_raw(self.graph, &raw, &raw_exec), b"graph_raw")
        return raw, raw_exec


def take(int device, size_t size, uintptr_t stream):
    """Memory for work on a stream; its address."""
    cdef uintptr_t address = 0
    with nogil:
        check_status(allocate(device, size, stream, &address), b"allocate")
    return address


def give(int device, uintptr_t address):
    """Gives memory back."""
    with nogil:
        check_status(release(device, address), b"release")


def use(int device, uintptr_t address, uintptr_t stream):
    """Says that a stream uses device memory."""
    with nogil:
        check_status(record_stream(device, address, stream), b"record_stream")


def use_pinned(int device, uintptr_t address, uintptr_t stream):
    """Says that a stream uses page-locked memory."""
    with nogil:
        check_status(record_pinned_stream(device, address, stream), b"record_pinned_stream")


def set_bytes(int device, uintptr_t stream, uintptr_t address, int value, size_t count):
    """Fills memory on a stream."""
    with nogil:
        check_status(fill(device, stream, address, value, 1, count), b"fill")


def lease(int device, int priority=0):
    """A stream of one's own."""
    cdef uintptr_t stream = 0
    with nogil:
        check_status(stream_lease(device, priority, &stream), b"stream_lease")
    return stream


def give_stream(int device, uintptr_t stream):
    """Returns it."""
    with nogil:
        check_status(stream_return(device, stream), b"stream_return")


def leased_events(int device, int count):
    """So many events at a time, returned together; their handles, and what returning the first again answers."""
    cdef uintptr_t event = 0
    cdef int index
    events = []
    for index in range(count):
        check_status(event_lease(device, index & 1, index & 2, &event), b"event_lease")
        events.append(event)
    for event in events:
        check_status(event_return(device, event), b"event_return")
    return events, status_name(event_return(device, events[0])).decode()


def wait_for(int device, uintptr_t stream, int other_device, uintptr_t other):
    """A stream waits for another."""
    with nogil:
        check_status(stream_wait_stream(device, stream, other_device, other), b"stream_wait_stream")


def status_of(int device, uintptr_t stream):
    """Whether a stream captures, and the capture's id."""
    cdef int status = -1
    cdef uint64_t capture = 0
    check_status(capture_status(device, stream, &status, &capture), b"capture_status")
    return status, capture


def exchange_mode(int mode):
    """The calling thread's capture mode before."""
    cdef int before = -1
    check_status(capture_mode_exchange(mode, &before), b"capture_mode_exchange")
    return before


def query(int device, uintptr_t stream):
    """The name of what stream_query answers."""
    return status_name(stream_query(device, stream)).decode()


def elapsed(int device, uintptr_t stream, uintptr_t address, size_t size):
    """Milliseconds of a fill; and what is said of an event that was never recorded."""
    cdef uintptr_t start = 0, end = 0, never = 0
    cdef float milliseconds = -1
    cdef int code
    check_status(event_lease(device, True, False, &start), b"event_lease")
    check_status(event_lease(device, True, False, &end), b"event_lease")
    check_status(event_create(device, True, &never), b"event_create")
    with nogil:
        check_status(event_record(device, start, stream), b"event_record")
        check_status(fill(device, stream, address, 1, 1, size), b"fill")
        check_status(event_record(device, end, stream), b"event_record")
        check_status(event_synchronize(device, end), b"event_synchronize")
        check_status(event_elapsed(start, end, &milliseconds), b"event_elapsed")
        code = event_elapsed(start, never, &milliseconds)
        event_destroy(device, never)
        event_return(device, start)
        event_return(device, end)
    return milliseconds, status_name(code).decode()


def revisions():
    """What this was built against, and what is installed."""
    return API_REVISION, api_revision()
