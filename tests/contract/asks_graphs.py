"""Graphs, kernels, and what is shared between processes."""

import os
import tempfile
from pathlib import Path

from asking import MIB, ask
from gate import SEM_POST, SEM_WAIT, Mark

PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .entry store(.param .u64 at)
{
    .reg .u64 %rd<3>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [at];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 7;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""


def fills(case, *values):
    memory = case.memory()
    return case.graph(lambda stream: [case.must("fill", 0, stream, memory, value, 1, 64) for value in values])


@ask("an empty graph: nodes, instantiate, launch, sync")
def _(case):
    graph, stream = case.graph(lambda stream: None), case.stream()
    code, exec_ = case.graph_instantiate(0, graph, 0)
    return (
        case.graph_node_count(graph),
        code,
        case.graph_launch(0, exec_, stream),
        case.stream_synchronize(0, stream),
    )


@ask("instantiate with flags 0, 1, 2, 4, 8, 16, 32")
def _(case):
    graph = fills(case, 1)
    return [case.graph_instantiate(0, graph, flags)[0] for flags in (0, 1, 2, 4, 8, 16, 32)]


@ask("destroy the graph, then launch its exec; graph twice; of 0")
def _(case):
    graph, stream = fills(case, 1), case.stream()
    exec_ = case.must("graph_instantiate", 0, graph, 0)
    destroyed = case.graph_destroy(graph)
    return (
        destroyed,
        case.graph_launch(0, exec_, stream),
        case.stream_synchronize(0, stream),
        case.graph_destroy(0),
    )


for row in ("graph_destroy", "graph_node_count"):

    @ask(f"{row} of a destroyed graph")
    def _(case, row=row):
        graph = fills(case, 1)
        case.must("graph_destroy", graph)
        return case.call(row, graph)


@ask("graph_exec_destroy twice")
def _(case):
    exec_ = case.must("graph_instantiate", 0, fills(case, 1), 0)
    return case.graph_exec_destroy(exec_), case.graph_exec_destroy(exec_)


@ask("graph_launch of exec 0; graph_upload of exec 0; instantiate of graph 0")
def _(case):
    stream = case.stream()
    return (
        case.graph_launch(0, 0, stream),
        case.graph_upload(0, 0, stream),
        case.graph_instantiate(0, 0, 0)[0],
    )


@ask("update: same shape, one more node, a copy for a fill, fewer nodes: code, result; launch after each")
def _(case):
    memory, stream = case.memory(), case.stream()
    exec_ = case.must("graph_instantiate", 0, fills(case, 1, 2), 0)
    copies = case.graph(
        lambda on: [
            case.must("fill", 0, on, memory, 1, 1, 64),
            case.must("copy", 0, on, memory + 512, memory, 64),
        ]
    )
    answers = []
    for graph in (fills(case, 3, 4), fills(case, 1, 2, 3), copies, fills(case, 1)):
        answers.append((case.graph_update(exec_, graph), case.graph_launch(0, exec_, stream)))
    return answers, case.stream_synchronize(0, stream)


@ask("update: a copy in for a copy out, pinned; fill of another width, count")
def _(case):
    memory, pinned = case.memory(), case.pinned()

    def one(row, *arguments):
        return case.graph(lambda on: case.must(row, 0, on, *arguments))

    copy = case.must("graph_instantiate", 0, one("copy", memory, pinned, 64), 0)
    fill = case.must("graph_instantiate", 0, one("fill", memory, 1, 1, 64), 0)
    return (
        case.graph_update(copy, one("copy", pinned, memory, 64)),
        case.graph_update(copy, one("copy", memory, pinned, 128)),
        case.graph_update(fill, one("fill", memory, 1, 4, 64)),
        case.graph_update(fill, one("fill", memory, 1, 1, 128)),
    )


@ask("update while a launch is held: code; does it wait")
def _(case):
    stream = case.stream()
    exec_ = case.must("graph_instantiate", 0, fills(case, 1), 0)
    case.gate.hold(case, stream)
    case.must("graph_launch", 0, exec_, stream)
    other = fills(case, 2)
    answer = case.in_thread(lambda: case.graph_update(exec_, other), 2)
    case.gate.open()
    return answer, case.stream_synchronize(0, stream)


@ask("one exec on two streams, the first held inside it: does the second run before")
def _(case):
    mark, first, second, event = Mark(), case.stream(), case.stream(), case.event()
    graph = case.graph(lambda on: case.must("stream_host_func", 0, on, SEM_WAIT, case.gate.address))
    exec_ = case.must("graph_instantiate", 0, graph, 0)
    case.must("graph_launch", 0, exec_, first)
    case.must("graph_launch", 0, exec_, second)
    case.must("event_record", 0, event, second)
    held = case.event_query(0, event), mark.value()
    case.gate.held = 2
    case.gate.open()
    return held, case.stream_synchronize(0, first), case.stream_synchronize(0, second)


@ask("one exec of a fill on two streams, the first held before it: is the second's launch done")
def _(case):
    first, second, event = case.stream(), case.stream(), case.event()
    exec_ = case.must("graph_instantiate", 0, fills(case, 1), 0)
    case.gate.hold(case, first)
    case.must("graph_launch", 0, exec_, first)
    case.must("graph_launch", 0, exec_, second)
    case.must("event_record", 0, event, second)
    answer = case.in_thread(lambda: case.event_synchronize(0, event), 1)
    case.gate.open()
    return answer, case.stream_synchronize(0, first)


@ask("graph_exec_destroy while a launch is held: code; waits; does the launch complete")
def _(case):
    stream, mark = case.stream(), Mark()
    graph = case.graph(lambda on: case.must("stream_host_func", 0, on, SEM_POST, mark.address))
    exec_ = case.must("graph_instantiate", 0, graph, 0)
    case.gate.hold(case, stream)
    case.must("graph_launch", 0, exec_, stream)
    answer = case.in_thread(lambda: case.graph_exec_destroy(exec_), 2)
    case.gate.open()
    return answer, case.stream_synchronize(0, stream), mark.value()


@ask("graph_launch on stream 0, 1, 2; sync")
def _(case):
    exec_ = case.must("graph_instantiate", 0, fills(case, 1), 0)
    return [case.graph_launch(0, exec_, stream) for stream in range(3)], case.device_synchronize(0)


@ask("graph_dot: to a file (first word), to a folder that is not there")
def _(case):
    graph = fills(case, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.dot")
        code = case.graph_dot(graph, path.encode(), 0)
        text = "-" if code else Path(path).read_text().split()[0]
        return code, text, case.graph_dot(graph, os.path.join(folder, "none", "graph.dot").encode(), 0)


@ask("module_load of garbage, of PTX; module_function of a missing name, of a right one; unload; unload 0")
def _(case):
    garbage = case.module_load(0, b"garbage")[0]
    code, module = case.module_load(0, PTX)
    if code:
        return garbage, code
    missing, right = case.module_function(module, b"none")[0], case.module_function(module, b"store")[0]
    return garbage, code, missing, right, case.module_unload(0, module), case.module_unload(0, 0)


@ask(
    "ipc: export of an event without and with the flag; of memory; of memory inside; open in the same process"
)
def _(case):
    plain, shared, memory = case.event(), case.event(6), case.memory(2 * MIB)
    codes = case.ipc_event_export(0, plain)[0], case.ipc_event_export(0, shared)[0]
    code, handle = case.ipc_memory_export(0, memory)
    inside = case.ipc_memory_export(0, memory + 512)[0]
    return codes, code, inside, case.ipc_memory_open(0, handle)[0] if code == 0 else "-"
