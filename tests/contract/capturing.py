"""What the tests of capture and of graphs share."""

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, INVALIDATED = 0, 1, 2
INVALID_VALUE, ILLEGAL_STATE, NOT_READY = 1, 401, 600
UNSUPPORTED, INVALID, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(
    900, 909
)
UPDATE_FAILURE = 910


def captured(rows, stream, work, mode=GLOBAL):
    """A graph of what work() puts into the stream."""
    rows.ok("capture_begin", 0, stream, mode)
    work()
    return rows.ok("capture_end", 0, stream)


def instantiated(rows, graph):
    """The executable of a graph, which itself goes; that one goes when the test is over."""
    exec_ = rows.kept("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    return exec_


def run(rows, exec_, stream):
    """Launches it, and waits for its end."""
    rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)


def fills(rows, stream, device, *values):
    for index, value in enumerate(values):
        rows.ok("fill", 0, stream, device + 4096 * index, value, 1, 4096)


def broken(rows, stream, device=0):
    """Ends a capture that an earlier call broke; the process is as before."""
    assert rows.ok("capture_status", device, stream)[0] == INVALIDATED
    assert rows.ok("stream_is_capturing", device, stream) == INVALIDATED
    code, graph = rows.capture_end(device, stream)
    assert (code, graph) == (INVALID, 0)
    assert rows.ok("capture_status", device, stream)[0] == NONE
