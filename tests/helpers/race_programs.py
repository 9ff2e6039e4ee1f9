"""Small programs that lack one wait, and the same programs with it."""

import accelrt

SIZE = 1 << 16


def two_streams():
    return accelrt.Stream(), accelrt.Stream()


def two_buffers(stream):
    return accelrt.Buffer(SIZE, stream=stream), accelrt.Buffer(SIZE, stream=stream)


def copy_after_copy(mended):
    one, other = two_streams()
    (first, second), third = two_buffers(one), accelrt.Buffer(SIZE, stream=other)
    accelrt.copy(second, first, stream=one, blocking=False)
    if mended:
        other.wait_stream(one)
    accelrt.copy(third, second, stream=other, blocking=False)


def fill_under_a_copy(mended):
    one, other = two_streams()
    first, second = two_buffers(one)
    accelrt.copy(second, first, stream=one, blocking=False)
    if mended:
        other.wait_event(one.record_event())
    first.fill(7, 1024, offset=SIZE - 1024, stream=other)


def free_while_in_use(mended):
    home, side = two_streams()
    pointer = accelrt.caching_allocator_alloc(SIZE, stream=home)
    accelrt.use(pointer, SIZE, side, "w")
    if mended:
        accelrt.record_stream(pointer, side)
    accelrt.caching_allocator_delete(pointer)


def fill_across_devices(mended):
    here, there = accelrt.Stream(0), accelrt.Stream(1)
    near, far = accelrt.Buffer(SIZE, stream=here), accelrt.Buffer(SIZE, stream=there)
    here.wait_stream(there)
    accelrt.copy(far, near, stream=here, blocking=False)
    if mended:
        there.wait_stream(here)
    far.fill(1, stream=there)
    there.wait_stream(here)


def captured_fill(stream):
    buffer, graph = accelrt.Buffer(SIZE), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        buffer.fill(3, stream=stream)
    return buffer, graph


def copy_under_a_replay(mended):
    one, other = two_streams()
    buffer, graph = captured_fill(one)
    target = accelrt.Buffer(SIZE, stream=other)
    with accelrt.stream(one):
        graph.replay()
    if mended:
        other.wait_stream(one)
    accelrt.copy(target, buffer, stream=other, blocking=False)


def host_write_under_a_copy(mended):
    stream, array = accelrt.Stream(), accelrt.pinned_empty(SIZE, "uint8")
    array[:] = 1
    buffer = accelrt.Buffer(SIZE, stream=stream)
    buffer.copy_from(array, stream=stream, blocking=False)
    if mended:
        stream.synchronize()
    array[17] = 2
    stream.synchronize()


def event_recorded_too_early(mended):
    one, other = two_streams()
    first, second = two_buffers(one)
    first.fill(1, stream=one)
    event = one.record_event()
    accelrt.copy(second, first, stream=one, blocking=False)
    if mended:
        event.record(one)
    other.wait_event(event)
    second.fill(2, stream=other)


def wait_for_the_wrong_event(mended):
    one, other = two_streams()
    third, buffer = accelrt.Stream(), accelrt.Buffer(SIZE)
    buffer.fill(1, stream=one)
    right, wrong = one.record_event(), third.record_event()
    other.wait_event(right if mended else wrong)
    buffer.fill(2, stream=other)


def host_read_before_synchronize(mended):
    stream, array = accelrt.Stream(), accelrt.pinned_empty(SIZE, "uint8")
    buffer = accelrt.Buffer(SIZE, stream=stream)
    buffer.fill(5, stream=stream)
    buffer.copy_to(array, stream=stream, blocking=False)
    if mended:
        stream.record_event().synchronize()
    accelrt.use(array, stream="host", mode="r")


def kernels_on_two_streams(mended):
    one, other = two_streams()
    buffer = accelrt.Buffer(SIZE, stream=one)
    accelrt.use(buffer, stream=one, mode="rw")
    if mended:
        other.wait_stream(one)
    accelrt.use(buffer.ptr + SIZE - 1, 1, other, "r")
    buffer.record_stream(other)


def reuse_on_another_stream(mended):
    home, other = two_streams()
    buffer = accelrt.Buffer(SIZE, stream=home)
    address = buffer.ptr
    buffer.fill(1, stream=home)
    buffer.free()
    again = accelrt.Buffer(SIZE, stream=home)
    assert again.ptr == address
    if mended:
        other.wait_stream(home)
    again.fill(2, stream=other)


def two_graphs_of_one_pool(mended):
    one, other = two_streams()
    graphs = accelrt.CUDAGraph(), accelrt.CUDAGraph()
    pool = accelrt.graph_pool_handle()
    for graph in graphs:
        with accelrt.graph(graph, pool=pool, stream=one):
            accelrt.Buffer(SIZE, stream=one).fill(1, stream=one)
    with accelrt.stream(one):
        graphs[0].replay()
    if mended:
        other.wait_stream(one)
    with accelrt.stream(other):
        graphs[1].replay()


def branches_of_a_capture(mended):
    one, other = two_streams()
    first, second = two_buffers(one)
    with accelrt.graph(accelrt.CUDAGraph(), stream=one):
        if not mended:
            other.wait_stream(one)
        first.fill(1, stream=one)
        if mended:
            other.wait_stream(one)
        accelrt.copy(second, first, stream=other, blocking=False)
        one.wait_stream(other)


def host_function_beside_a_copy(mended):
    one, other = two_streams()
    array, buffer = accelrt.pinned_empty(SIZE, "uint8"), accelrt.Buffer(SIZE, stream=other)
    one.launch_host_func(lambda: accelrt.use(array, stream="host", mode="w"))
    if mended:
        other.wait_stream(one)
    buffer.copy_from(array, stream=other, blocking=False)


def graph_that_waits_for_an_event(mended):
    one, other = two_streams()
    first, second = two_buffers(one)
    event, graph = accelrt.Event(external=True), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=other):
        if mended:
            event.wait(other)
        accelrt.copy(second, first, stream=other, blocking=False)
        if not mended:
            event.wait(other)
    first.fill(1, stream=one)
    event.record(one)
    with accelrt.stream(other):
        graph.replay()


def event_that_a_graph_records(mended):
    one, other = two_streams()
    first, second = two_buffers(one)
    event, graph = accelrt.Event(external=True), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=one):
        if not mended:
            event.record(one)
        first.fill(1, stream=one)
        if mended:
            event.record(one)
    with accelrt.stream(one):
        graph.replay()
    other.wait_event(event)
    accelrt.copy(second, first, stream=other, blocking=False)


def two_graphs_and_an_event(mended):
    one, other = two_streams()
    (first, second), third = two_buffers(one), accelrt.Buffer(SIZE, stream=other)
    event, writer, reader = accelrt.Event(external=True), accelrt.CUDAGraph(), accelrt.CUDAGraph()
    with accelrt.graph(writer, stream=one):
        first.fill(1, stream=one)
        event.record(one)
        second.fill(1, stream=one)
    with accelrt.graph(reader, stream=other):
        event.wait(other)
        accelrt.copy(third, first if mended else second, stream=other, blocking=False)
    for stream, graph in ((one, writer), (other, reader)):
        with accelrt.stream(stream):
            graph.replay()


PROGRAMS = [
    copy_after_copy,
    fill_under_a_copy,
    free_while_in_use,
    fill_across_devices,
    copy_under_a_replay,
    host_write_under_a_copy,
    event_recorded_too_early,
    wait_for_the_wrong_event,
    host_read_before_synchronize,
    kernels_on_two_streams,
    reuse_on_another_stream,
    two_graphs_of_one_pool,
    branches_of_a_capture,
    host_function_beside_a_copy,
    graph_that_waits_for_an_event,
    event_that_a_graph_records,
    two_graphs_and_an_event,
]
