"""Graphs made by hand by the rows of the driver table: what nodes do, as the rows read it."""

import ctypes

KERNEL, COPY, FILL, HOST, CHILD, EMPTY, WAIT, RECORD, ALLOCATE, FREE, CONDITION = *range(8), 10, 11, 13
IF, WHILE, SWITCH = range(3)


class NodeParams(ctypes.Structure):
    """NodeParams of accelrt/driver/node_params.pxd."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("function", ctypes.c_size_t),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        *((name, ctypes.c_size_t) for name in ("dst", "src", "dst_pitch", "dst_lines", "src_pitch")),
        *((name, ctypes.c_size_t) for name in ("src_lines", "width", "height", "depth")),
        ("sides", ctypes.c_int),
        ("value", ctypes.c_uint),
        ("element", ctypes.c_int),
        ("fn", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_size_t) for name in ("event", "graph", "address", "size")),
        ("device", ctypes.c_int),
        ("peers", ctypes.c_uint64),
        ("condition", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("count", ctypes.c_uint),
        ("bodies", ctypes.c_void_p),
    )


class EdgeData(ctypes.Structure):
    """EdgeData of accelrt/driver/node_params.pxd."""

    _fields_ = (
        *((name, ctypes.c_uint8) for name in ("from_port", "to_port", "type")),
        ("reserved", ctypes.c_uint8 * 5),
    )


def carrying(*pairs):
    """The rows' array of what edges carry, each (type, from_port)."""
    return (EdgeData * len(pairs))(*[EdgeData(port, 0, kind) for kind, port in pairs])


def copied(dst, src, width):
    return NodeParams(type=COPY, dst=dst, src=src, width=width, height=1, depth=1)


def filled(dst, value, width, element=1, height=1, pitch=0):
    return NodeParams(
        type=FILL, dst=dst, value=value, element=element, width=width, height=height, dst_pitch=pitch
    )


def kernel(function, at, value, blocks=4):
    """What a kernel node does, and what its arguments lie in."""
    params = NodeParams(type=KERNEL, function=function, grid=(blocks, 1, 1), block=(64, 1, 1))
    address, number = ctypes.c_uint64(at), ctypes.c_uint32(value)
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(number))
    params.arguments = ctypes.addressof(pointers)
    params.kept = address, number, pointers
    return params


def told(rows, graph, node):
    params = NodeParams()
    rows.ok("graph_node_params", graph, node, ctypes.addressof(params))
    return params


def change(rows, graph, exec_, node, params):
    return rows.graph_node_set(0, graph, exec_, node, ctypes.addressof(params))


def array(handles):
    return (ctypes.c_size_t * max(len(handles), 1))(*handles)


def edges(rows, name, graph, *pairs, data=None):
    origins, targets = array([pair[0] for pair in pairs]), array([pair[1] for pair in pairs])
    given = ctypes.addressof(origins), ctypes.addressof(targets)
    return getattr(rows, name)(graph, len(pairs), *given, 0 if data is None else ctypes.addressof(data))


def edges_told(rows, graph):
    """{(node, node after it): (type, from_port)} of a graph."""
    room = rows.ok("graph_edges", graph, 0, 0, 0, 0)
    origins, targets, data = array([0] * room), array([0] * room), carrying(*[(0, 0)] * max(room, 1))
    given = [ctypes.addressof(each) for each in (origins, targets, data)]
    assert not room or rows.ok("graph_edges", graph, room, *given) == room
    assert all(not each.to_port and not any(each.reserved) for each in data)
    found = zip(origins, targets, data, strict=False)
    return {(first, second): (each.type, each.from_port) for first, second, each in list(found)[:room]}
