"""Graphs made by hand: nodes, edges, instances, and captured graphs that are taken apart."""

import contextlib
import gc
import itertools
import json
import os
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest
from child import in_own_process
from graph_memory import filled, read, read_numbers, replay
from kernel_sources import numbers

import accelrt
from accelrt import testing
from accelrt.testing.interleavings import Interleaver

pytestmark = pytest.mark.usefixtures("by_hand")
COUNT = 256
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"


def kernel_of(image):
    return accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")


def buffer(value=0):
    return filled(4 * COUNT, value)


def test_nodes_run_in_the_order_of_their_edges(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y = buffer(), buffer()
    first = definition.kernel(kernel, 4, 64, (x, 5), name="numbers")
    second = definition.copy(y, x, after=first)
    third = definition.fill(x, 1, after=[second])
    graph = definition.instantiate()
    replay(graph)
    assert (read_numbers(y) == numbers(5)).all()
    assert (read(x) == 1).all()
    assert [node.type for node in definition.nodes()] == ["kernel", "memcpy", "memset"]
    assert definition.edges() == [(first, second), (second, third)]
    assert (second.predecessors, second.successors) == ((first,), (third,))
    assert definition.nodes()[0] is first
    assert repr(first) == "<accelrt.DefinitionNode kernel numbers>"
    assert "graph of 3 nodes" in repr(definition)


def test_an_instance_stays_when_the_definition_changes():
    definition = accelrt.GraphDefinition()
    x = buffer()
    first = definition.fill(x, 1)
    graph = definition.instantiate()
    second = definition.fill(x, 2, after=first)
    replay(graph)
    assert (read(x) == 1).all()
    replay(definition.instantiate())
    assert (read(x) == 2).all()
    second.remove()
    replay(definition.instantiate())
    assert (read(x) == 1).all()
    with pytest.raises(RuntimeError, match="taken out"):
        second.remove()


def test_edges_are_added_and_removed():
    definition = accelrt.GraphDefinition()
    x, y = buffer(), buffer()
    copied, filled = definition.copy(y, x), definition.fill(x, 3)
    definition.add_edge(filled, copied)
    replay(definition.instantiate())
    assert (read(y) == 3).all()
    definition.remove_edge(filled, copied)
    assert definition.edges() == []
    with pytest.raises(accelrt.CudaError, match="edge"):
        definition.remove_edge(filled, copied)
    definition.add_edge(filled, copied)
    definition.add_edge(copied, filled)
    with pytest.raises(accelrt.CudaError):
        definition.instantiate()


def test_edges_that_make_a_circle_are_told_of():
    definition = accelrt.GraphDefinition()
    first = definition.empty()
    second = definition.empty(after=first)
    try:
        definition.add_edge(second, first)
    except accelrt.CudaError:
        pytest.skip("the driver refuses such an edge at once")
    with pytest.raises(accelrt.CudaError, match="edges that make a circle"):
        definition.instantiate()
    definition.remove_edge(second, first)
    definition.instantiate()


def test_rows_are_copied_and_filled():
    definition = accelrt.GraphDefinition()
    x, y = buffer(), buffer()
    first = definition.fill(x, 7, 2, width=4, offset=16, height=3, pitch=64)
    definition.copy_3d(y, x, 8, 3, src_offset=16, src_pitch=64, dst_pitch=16, after=first)
    replay(definition.instantiate())
    assert np.flatnonzero(read_numbers(x)).tolist() == [4, 5, 20, 21, 36, 37]
    assert np.flatnonzero(read_numbers(y)).tolist() == [0, 1, 4, 5, 8, 9]
    assert set(read_numbers(y)) == {0, 7}


def test_host_functions_run_and_their_errors_are_raised_later():
    definition = accelrt.GraphDefinition()
    seen = []
    first = definition.host_function(lambda: seen.append(1))
    definition.host_function(lambda: seen.append(2), after=first)
    graph = definition.instantiate()
    for _ in range(3):
        replay(graph)
    assert seen == [1, 2] * 3
    definition.host_function(lambda: 1 / 0)
    graph = definition.instantiate()
    graph.replay()
    with pytest.raises(ZeroDivisionError):
        accelrt.synchronize()


def test_events_are_recorded_and_waited_for():
    definition = accelrt.GraphDefinition()
    x = buffer()
    gate, done = threading.Event(), accelrt.Event()
    before, other = accelrt.Event(), accelrt.Stream()
    other.launch_host_func(lambda: gate.wait(300))
    before.record(other)
    waits = definition.wait(before)
    fill = definition.fill(x, 4, after=waits)
    definition.record(done, after=fill)
    graph = definition.instantiate()
    graph.replay()
    assert not done.query()
    gate.set()
    done.synchronize()
    assert (read(x) == 4).all()


def test_a_child_is_a_copy_whose_functions_run_as_often_as_it_is_there():
    definition = accelrt.GraphDefinition()
    seen, x = [], buffer()
    child = accelrt.GraphDefinition()
    child.host_function(lambda: seen.append(1))
    fill = child.fill(x, 5)
    first = definition.child(child)
    definition.child(child, after=first)
    fill.update(value=6)
    assert [node.type for node in first.params.nodes()] == ["host", "memset"]
    del child, fill
    gc.collect()
    replay(definition.instantiate())
    assert seen == [1, 1]
    assert (read(x) == 5).all()


def test_nodes_tell_what_they_do(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y, event = buffer(), buffer(), accelrt.Event()
    launch = definition.kernel(kernel, 4, 64, (x, 5))
    assert (launch.params.kernel, launch.params.grid, launch.params.block) == (kernel, (4, 1, 1), (64, 1, 1))
    copied = definition.copy(y, x, 64, dst_offset=8).params
    assert (copied.dst, copied.src, copied.width, copied.height) == (y.ptr + 8, x.ptr, 64, 1)
    filled = definition.fill(x, 258, 4, width=2).params
    assert (filled.dst, filled.value, filled.width, filled.elements) == (x.ptr, 258, 2, 4)
    assert definition.host_function(gc.collect).params == gc.collect
    assert definition.record(event).params is event
    assert definition.empty().params is None


def test_an_instances_node_is_changed_and_the_definition_stays(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y = buffer(), buffer()
    launch = definition.kernel(kernel, 4, 64, (x, 5))
    fill = definition.fill(y, 1)
    graph = definition.instantiate()
    launch.update(instance=graph, args=(y, 9))
    fill.update(instance=graph, dst=x)
    replay(graph)
    assert (read_numbers(y) == numbers(9)).all()
    assert (read(x) == 1).all()
    launch.update(instance=graph, grid=2)  # with the arguments that it has
    fill.update(instance=graph, value=2)
    y.fill(0)
    replay(graph)
    assert (read_numbers(y) == [*numbers(9, 128), *[0] * 128]).all()
    assert (read(x) == 2).all()
    assert launch.params.grid == (4, 1, 1)
    assert fill.params.value == 1
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


def test_a_definitions_node_is_changed_for_later_instances(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y, seen = buffer(), buffer(), []
    launch = definition.kernel(kernel, 4, 64, (x, 5))
    copied = definition.copy(y, x, 64, after=launch)
    calls = definition.host_function(lambda: seen.append("old"), after=copied)
    old = definition.instantiate()
    launch.update(args=(x, 8))
    copied.update(nbytes=128)
    calls.update(function=lambda: seen.append("new"))
    replay(old)
    replay(definition.instantiate())
    assert seen == ["old", "new"]
    assert (read_numbers(y)[:33] == [*numbers(8, 32), 0]).all()
    calls.update(instance=old, function=lambda: seen.append("other"))
    replay(old)
    replay(old)
    assert seen == ["old", "new", "other", "other"]
    with pytest.raises(TypeError, match="has no such argument: value; it has dst, src, nbytes, "):
        copied.update(value=1)
    with pytest.raises(TypeError, match="nothing was given for a host node; pass function="):
        calls.update()
    with pytest.raises(TypeError, match="a kernel node has no such argument: threads; it has kernel, grid, "):
        launch.update(threads=1)
    with pytest.raises(TypeError, match="cannot be changed"):
        definition.empty().update(value=1)


def test_what_is_no_kernel_no_event_and_no_condition_of_the_graph_is_refused_in_words():
    definition = accelrt.GraphDefinition()
    with pytest.raises(
        TypeError, match=r"kernel is 3 of type int; pass a Kernel, as Module\.function\(\) returns"
    ):
        definition.kernel(3, 1, 1)
    for add in (definition.record, definition.wait):
        with pytest.raises(TypeError, match="event is 3 of type int; pass an Event"):
            add(3)
    recorded = definition.record(accelrt.Event())
    with pytest.raises(TypeError, match="event is None of type NoneType; pass an Event"):
        recorded.update(event=None)
    other = accelrt.GraphDefinition()
    with pytest.raises(ValueError, match="the condition is of another graph"):
        definition.if_(other.condition(1))


def test_nodes_are_left_out_of_an_instance():
    definition = accelrt.GraphDefinition()
    x, y = buffer(), buffer()
    fill, other = definition.fill(x, 1), definition.fill(y, 1)
    empty = definition.empty()
    graph = definition.instantiate()
    fill.set_enabled(graph, False)
    assert (fill.is_enabled(graph), other.is_enabled(graph)) == (False, True)
    replay(graph)
    assert (read(x) == 0).all()
    assert (read(y) == 1).all()
    fill.set_enabled(graph, True)
    replay(graph)
    assert (read(x) == 1).all()
    with pytest.raises(accelrt.CudaError, match="only kernels, copies and fills"):
        empty.set_enabled(graph, False)
    other_graph = accelrt.GraphDefinition().instantiate()
    with pytest.raises(RuntimeError, match="no node of the graph"):
        fill.update(instance=other_graph, value=1)


def test_what_an_instance_leaves_out_it_leaves_out_once_it_is_updated():
    definition, x, y = accelrt.GraphDefinition(), buffer(), buffer()
    first = definition.fill(x, 1)
    second = definition.fill(y, 1, after=first)
    graph = definition.instantiate()
    first.set_enabled(graph, False)
    first.update(value=2)
    second.update(value=2)
    graph.update(definition.graph)
    replay(graph)
    assert ((read(x) == 0).all(), (read(y) == 2).all()) == (True, True)


def test_an_instance_takes_what_another_definition_does():
    definition = accelrt.GraphDefinition()
    x = buffer()
    definition.fill(x, 1)
    graph = definition.instantiate()
    other = accelrt.GraphDefinition()
    first = other.fill(x, 2)
    graph.update(other.graph)
    replay(graph)
    assert (read(x) == 2).all()
    other.fill(x, 3, after=first)
    with pytest.raises(accelrt.CudaError, match="TOPOLOGY_CHANGED"):
        graph.update(other.graph)


def test_a_clone_is_a_graph_of_its_own(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, seen = buffer(), []
    launch = definition.kernel(kernel, 4, 64, (x, 5), name="launch")
    calls = definition.host_function(lambda: seen.append(1), after=launch)
    clone = definition.clone()
    copied = clone.find_in_clone(launch)
    assert (copied.name, copied.type) == ("launch", "kernel")
    clone.find_in_clone(calls).remove()
    copied.update(args=(x, 7))
    graph = clone.instantiate()
    del definition, launch, calls
    gc.collect()
    replay(graph)
    assert (read_numbers(x) == numbers(7)).all()
    assert not seen


def test_a_captured_graph_is_taken_apart_and_added_to(image):
    kernel = kernel_of(image)
    x, y, seen = buffer(), buffer(), []
    captured = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(captured):
        kernel[4, 64](x, 5)
        accelrt.current_stream().launch_host_func(lambda: seen.append("captured"))
    captured.instantiate()
    apart = accelrt.GraphDefinition(captured)
    launch, calls = apart.nodes()
    assert (launch.type, calls.type) == ("kernel", "host")
    calls.remove()
    last = apart.copy(y, x, after=launch)
    apart.host_function(lambda: seen.append("added"), after=last)
    replay(captured)  # as it was instantiated
    assert seen == ["captured"]
    captured.instantiate()
    replay(captured)
    assert seen == ["captured", "added"]
    assert (read_numbers(y) == numbers(5)).all()
    replay(apart.instantiate())
    assert seen == ["captured", "added", "added"]


def test_memory_of_the_graphs_pool_serves_an_instance():
    captured, y = accelrt.CUDAGraph(keep_graph=True), buffer()
    with accelrt.graph(captured):
        temporary = accelrt.Buffer(4 * COUNT)
        temporary.fill(3)
        accelrt.copy(y, temporary, blocking=False)
    graph = accelrt.GraphDefinition(captured).instantiate()
    assert graph.pool() == captured.pool()
    del captured, temporary
    gc.collect()
    accelrt.empty_cache()
    replay(graph)
    assert (read(y) == 3).all()


def test_what_nodes_point_at_lives_as_long_as_they_do():
    definition = accelrt.GraphDefinition()
    x, y, kept = buffer(), buffer(), []
    watched = [weakref.ref(each) for each in (x, y)]
    fill = definition.fill(x, 1)
    definition.copy(y, x, after=fill)
    del x
    graph = definition.instantiate()
    node = definition.nodes()[1]
    node.remove()
    del node, y
    gc.collect()
    assert [each() is None for each in watched] == [False, False]  # the instance has the copy
    del graph
    accelrt.synchronize()
    gc.collect()
    assert [each() is None for each in watched] == [False, True]

    class Thing:
        pass

    thing = Thing()
    watched.append(weakref.ref(thing))
    definition.retain_object(thing)
    del thing
    graph = definition.instantiate()
    del definition, fill
    gc.collect()
    assert watched[2]() is not None
    del graph
    gc.collect()
    assert [each() for each in watched] == [None] * 3
    assert not kept


def test_a_graph_that_dies_under_its_replay_keeps_the_memory():
    definition = accelrt.GraphDefinition()
    x = buffer()
    gate = threading.Event()
    first = definition.host_function(lambda: gate.wait(300))
    definition.fill(x, 9, after=first)
    graph = definition.instantiate()
    graph.replay()
    del graph, definition, first
    gc.collect()
    address = x.ptr
    out = np.zeros(4 * COUNT, np.uint8)
    del x
    gate.set()
    accelrt.synchronize()
    again = accelrt.Buffer(4 * COUNT)
    assert again.ptr != address or accelrt.copy(out, again) is None


def test_conditions_choose_and_repeat():
    definition = accelrt.GraphDefinition()
    x, flag = buffer(), accelrt.Buffer(8)
    accelrt.copy(flag, np.array([1, 0], np.uint32))
    chosen = definition.condition()
    sets = definition.set_condition(chosen, flag)
    node = definition.if_(chosen, else_=True, after=sets)
    then, otherwise = node.bodies
    then.fill(x, 1)
    otherwise.fill(x, 2)
    graph = definition.instantiate()
    replay(graph)
    assert (read(x) == 1).all()
    accelrt.copy(flag, np.array([0, 0], np.uint32))
    replay(graph)
    assert (read(x) == 2).all()
    assert node.params.kind == "if"
    assert [each.type for each in then.nodes()] == ["memset"]
    with pytest.raises(accelrt.NotSupportedError, match="body"):
        then.host_function(gc.collect)


def test_a_loop_and_a_switch_nest():
    definition = accelrt.GraphDefinition()
    x, flags = buffer(), accelrt.Buffer(16)
    accelrt.copy(flags, np.array([0, 2, 0, 0], np.uint32))
    more = definition.condition(1)
    (body,) = definition.while_(more).bodies
    which = body.condition()
    picks = body.set_condition(which, flags.ptr + 4)
    cases = body.switch(which, 3, after=picks).bodies
    for number, case in enumerate(cases):
        case.fill(x, 10 + number)
    body.set_condition(more, flags)
    replay(definition.instantiate())
    assert (read(x) == 12).all()
    assert len(definition.to_dict()["nodes"][0]["graphs"][0]["nodes"][1]["graphs"]) == 3
    with pytest.raises(accelrt.CudaError):
        definition.clone()


def test_memory_is_allocated_and_freed_in_a_graph(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    y = buffer()
    allocated = definition.allocate(4 * COUNT)
    launch = definition.kernel(kernel, 4, 64, (allocated.address, 3), after=allocated)
    copied = definition.copy(y, allocated.address, 4 * COUNT, after=launch)
    definition.free(allocated, after=copied)
    accelrt.reset_peak_graph_memory_stats()
    graph = definition.instantiate()
    for _ in range(2):
        replay(graph)
    assert (read_numbers(y) == numbers(3)).all()
    assert allocated.params.nbytes == 4 * COUNT
    stats = accelrt.graph_memory_stats()
    assert stats["reserved"] >= 4 * COUNT
    assert stats["reserved_peak"] >= stats["reserved"]
    with pytest.raises(accelrt.CudaError):
        copied.remove()
    del graph
    gc.collect()
    accelrt.graph_memory_trim()
    accelrt.reset_peak_graph_memory_stats()
    assert accelrt.graph_memory_stats() == dict.fromkeys(stats, 0)


def test_a_launch_frees_what_the_last_one_left():
    definition = accelrt.GraphDefinition()
    allocated = definition.allocate(4096)
    definition.fill(allocated.address, 1, 4096, after=allocated)
    graph = definition.instantiate(auto_free=True)
    for _ in range(3):
        replay(graph)
    del graph
    gc.collect()
    last = accelrt.GraphDefinition()
    last.free(allocated)
    replay(last.instantiate())
    graph = definition.instantiate()
    replay(graph)
    with pytest.raises(accelrt.CudaError, match="the last launch allocated and nothing has freed"):
        graph.replay()
    replay(last.instantiate())


def test_a_definition_is_told_as_data_and_drawn(image, tmp_path):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x = buffer()
    first = definition.kernel(kernel, 4, 64, (x, 5), name="one")
    definition.fill(x, 1, after=first)
    told = json.loads(definition.to_json())
    assert [(node["type"], node["name"], node["after"]) for node in told["nodes"]] == [
        ("kernel", "one", []),
        ("memset", "", [0]),
    ]
    assert told["nodes"][1]["params"]["dst"] == x.ptr
    assert told["nodes"][0]["params"]["arguments"][1] == "05000000"
    definition.debug_dump(tmp_path / "graph.dot")
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")


def test_hooks_are_called_around_an_instantiation():
    definition = accelrt.GraphDefinition()
    calls = []
    with definition.register_instantiate_pre_hook(lambda given: calls.append(given is definition)):
        definition.register_instantiate_hook(lambda graph: calls.append(type(graph).__name__))
        definition.instantiate()
    definition.instantiate()
    assert calls == [True, "CUDAGraph", "CUDAGraph"]


def test_what_a_node_may_not_be_is_refused_and_nothing_is_added(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x = buffer()
    freed = buffer()
    freed.free()
    other = accelrt.GraphDefinition()
    node, condition = other.empty(), other.condition()
    refused = [
        (lambda: definition.fill(freed, 1), ValueError, "freed"),
        (lambda: definition.fill(x, 256), ValueError, "value"),
        (lambda: definition.fill(x, 0, 4 * COUNT + 1), ValueError, "count"),
        (lambda: definition.fill(x, 0, width=3), ValueError, "1, 2 or 4"),
        (lambda: definition.copy(x, x, 4 * COUNT + 1), ValueError, "nbytes"),
        (lambda: definition.copy(x.ptr, x.ptr), ValueError, "say how many"),
        (lambda: definition.copy(x, object()), TypeError, "src"),
        (lambda: definition.copy_3d(x, x, 64, 17, 1, dst_pitch=64), ValueError, "bytes of dst"),
        (lambda: definition.kernel(kernel, 4, 64, (x,)), TypeError, "number"),
        (lambda: definition.kernel(kernel, 4, 64, (freed, 1)), ValueError, "freed"),
        (lambda: definition.kernel(kernel, 0, 64, (x, 1)), ValueError, "grid"),
        (lambda: definition.host_function(3), TypeError, "cannot be called"),
        (lambda: definition.empty(after=[3]), TypeError, "no node"),
        (lambda: definition.empty(after=node), ValueError, "another GraphDefinition"),
        (lambda: definition.child(3), TypeError, "pass a GraphDefinition"),
        (lambda: definition.free(node), TypeError, "allocates nothing"),
        (lambda: definition.allocate(0), ValueError, "nbytes"),
        (lambda: definition.if_(3), TypeError, "condition"),
        (lambda: definition.switch(definition.condition(), 0), ValueError, "count"),
        (lambda: definition.fill(np.zeros(4, np.uint8), 1), ValueError, "page-locked"),
        (lambda: definition.set_condition(condition, x), ValueError, "of another graph"),
        (lambda: definition.allocate(16, peers=[63]), accelrt.CudaError, "peer"),
        (lambda: other.add_edge(node, node), accelrt.CudaError, "they are one node"),
        (lambda: definition.find_in_clone(node), accelrt.CudaError, "no clone of the node's graph"),
        (lambda: definition.set_condition(definition.condition(), x.ptr + 1), ValueError, "multiple of 4"),
        (lambda: accelrt.GraphDefinition(3), TypeError, "CUDAGraph"),
        (lambda: accelrt.GraphDefinition(accelrt.CUDAGraph()), RuntimeError, "not kept"),
    ]
    for call, kind, text in refused:
        with pytest.raises(kind, match=text):
            call()
    assert definition.nodes() == []
    assert other.empty(after=[node, node]).predecessors == (node,)


def test_threads_that_add_to_one_graph_are_refused_or_take_turns():
    definition = accelrt.GraphDefinition()
    x = buffer()
    refused = []

    def add():
        for _ in range(200):
            try:
                definition.fill(x, 1)
            except RuntimeError as error:
                refused.append(error)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(definition.nodes()) == 800 - len(refused)
    assert all("another thread" in str(error) for error in refused)
    replay(definition.instantiate())


# --- kinds of edges --------------------------------------------------------------------------------


def test_a_launch_that_may_begin_early_is_captured_behind_an_edge_that_says_so(image):
    if not ON_HOST and accelrt.get_device_capability()[0] < 9:
        pytest.skip("such launches need compute capability 9.0")
    kernel, target, stream = kernel_of(image), buffer(), accelrt.Stream()
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph, stream=stream):
        target.fill(0, stream=stream)
        kernel.launch(4, 64, (target, 5), stream=stream)
        kernel.launch(4, 64, (target, 6), stream=stream, programmatic=True)
        kernel.launch(4, 64, (target, 7), stream=stream)
    edges = accelrt.GraphDefinition(graph).edges()
    assert [(edge.kind, edge.port) for edge in edges] == [
        ("default", "default"),
        ("programmatic", "programmatic"),
        ("default", "default"),
    ]


def test_an_edge_has_a_kind_and_a_port(image, tmp_path):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y = buffer(), buffer()
    first = definition.kernel(kernel, 4, 64, (x, 5))
    second = definition.kernel(kernel, 4, 64, (y, 6))
    third = definition.kernel(kernel, 4, 64, (x, 7))
    fourth = definition.copy(y, x)
    definition.add_edge(first, second, kind="programmatic")
    definition.add_edge(second, third, kind="programmatic", port="launch_order")
    definition.add_edge(third, fourth)
    edges = definition.edges()
    assert edges == [(first, second), (second, third), (third, fourth)]
    port = edges[1].port
    assert port == "launch_order" or (not ON_HOST and port == "programmatic")
    kinds = [("programmatic", "programmatic"), ("programmatic", port), ("default", "default")]
    assert [(edge.kind, edge.port) for edge in edges] == kinds
    assert second.predecessors == (first,)
    assert repr(edges[1]).endswith(f"programmatic from port {port}>")
    assert repr(edges[2]).endswith(f"{fourth!r}>")
    assert [node["ports"] for node in definition.to_dict()["nodes"]] == [
        [],
        [[0, "programmatic", "programmatic"]],
        [[1, "programmatic", port]],
        [],
    ]
    clone = definition.clone()
    assert [(edge.kind, edge.port) for edge in clone.edges()] == kinds
    definition.debug_dump(tmp_path / "graph.dot")
    if ON_HOST:
        drawn = (tmp_path / "graph.dot").read_text()
        labels = '[label="programmatic"]', '[label="programmatic, launch order"]'
        assert [drawn.count(label) for label in labels] == [1, 1]
    replay(clone.instantiate())
    assert (read_numbers(y) == numbers(7)).all()
    with pytest.raises(TypeError, match="DefinitionEdge cannot be pickled"):
        pickle.dumps(edges[0])


def test_an_edge_of_any_kind_is_removed(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x = buffer()
    first = definition.kernel(kernel, 4, 64, (x, 5))
    second = definition.kernel(kernel, 4, 64, (x, 6))
    for kind, port in (("default", None), ("programmatic", None), ("programmatic", "launch_order")):
        definition.add_edge(first, second, kind=kind, port=port)
        with pytest.raises(accelrt.CudaError, match="there is an edge between the two already"):
            definition.add_edge(first, second, kind="programmatic")
        definition.remove_edge(first, second)
        assert definition.edges() == []
    with pytest.raises(accelrt.CudaError, match="there is no edge between the two"):
        definition.remove_edge(first, second)


def test_edges_of_no_kind_are_refused(image):
    definition = accelrt.GraphDefinition()
    x = buffer()
    first = definition.kernel(kernel_of(image), 4, 64, (x, 5))
    second = definition.fill(x, 1)
    with pytest.raises(ValueError, match="kind is 'soft'; it may be 'default', 'programmatic'"):
        definition.add_edge(first, second, kind="soft")
    with pytest.raises(ValueError, match="port is 'programmatic'; of an edge of kind 'default'"):
        definition.add_edge(first, second, port="programmatic")
    with pytest.raises(ValueError, match="port is 'default'; of an edge of kind 'programmatic'"):
        definition.add_edge(first, second, kind="programmatic", port="default")
    with pytest.raises(accelrt.CudaError, match="or is no kernel, which ports and programmatic"):
        definition.add_edge(first, second, kind="programmatic")
    assert definition.edges() == []


# --- kernels of bodies and children ------------------------------------------------------------------


def test_a_kernel_of_a_body_is_told_and_changed(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y = buffer(), buffer()
    (body,) = definition.if_(definition.condition(1)).bodies
    node = body.kernel(kernel, 4, 64, (x, 5))
    assert (node.params.kernel, node.params.grid) == (kernel, (4, 1, 1))
    first = definition.instantiate()
    node.update(args=(y, 6))
    assert node.params.arguments[1] == b"\x06\0\0\0"
    replay(first)
    assert (read_numbers(x) == numbers(5)).all()
    assert (read_numbers(y) == 0).all()
    first.update(definition.graph)
    x.fill(0)
    replay(first)
    assert (read_numbers(y) == numbers(6)).all()
    assert (read_numbers(x) == 0).all()
    del first
    second = definition.instantiate()
    y.fill(0)
    replay(second)
    assert (read_numbers(y) == numbers(6)).all()
    assert (read_numbers(x) == 0).all()


def test_a_graph_with_conditions_has_one_instance_at_a_time():
    definition, x = accelrt.GraphDefinition(), buffer()
    (body,) = definition.if_(definition.condition(1)).bodies
    fill = body.fill(x, 1)
    first = definition.instantiate()
    with pytest.raises(
        accelrt.NotSupportedError, match=r"one instance at a time: drop or reset\(\) the other one"
    ):
        definition.instantiate()
    with pytest.raises(accelrt.NotSupportedError, match="one instance at a time"):
        definition.graph.instantiate()
    fill.update(value=2)
    first.update(definition.graph)
    replay(first)
    assert (read(x) == 2).all()
    first.reset()
    for value in (3, 4):  # a graph's own instance gives way to its next
        fill.update(value=value)
        definition.graph.instantiate()
        replay(definition.graph)
        assert (read(x) == value).all()


@pytest.mark.parametrize("kind", ["clone", "child", "instance"])
def test_what_was_made_of_a_graph_before_its_conditions_counts_as_an_instance(kind):
    definition, around, x = accelrt.GraphDefinition(), accelrt.GraphDefinition(), buffer()
    definition.fill(x, 1)
    makers = {
        "clone": definition.clone,
        "child": lambda: around.child(definition),
        "instance": definition.instantiate,
    }
    made = makers[kind]()
    (body,) = definition.if_(definition.condition(1), after=definition.nodes()).bodies
    body.fill(x, 2)
    with pytest.raises(accelrt.NotSupportedError, match="clones and children that were made of it before"):
        definition.instantiate()
    if kind == "child":
        made.remove()
    del made, makers
    gc.collect()
    replay(definition.instantiate())
    assert (read(x) == 2).all()


def updated(node, instance, **changes):
    """Whether an instance took a change of a body's node, which a driver may refuse."""
    if ON_HOST:
        node.update(instance=instance, **changes)
        return True
    try:
        node.update(instance=instance, **changes)
    except accelrt.CudaError as error:
        told = str(error)
    else:
        return True
    assert "numbers> is in a body or a child" in told
    return False


def test_a_kernel_of_a_body_is_changed_in_an_instance_or_refused_by_name(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    x, y = buffer(), buffer()
    (body,) = definition.if_(definition.condition(1)).bodies
    node = body.kernel(kernel, 4, 64, (x, 5), name="numbers")
    instance = definition.instantiate()
    if not updated(node, instance, args=(y, 6)):
        pytest.skip("the driver changes no node of a body in an instance")
    replay(instance)
    assert (read_numbers(y) == numbers(6)).all()
    assert node.params.arguments[1] == b"\x05\0\0\0"
    del instance
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


def test_a_node_of_a_body_that_was_taken_out_is_changed_no_more(image):
    definition = accelrt.GraphDefinition()
    kernel = kernel_of(image)
    (body,) = definition.if_(definition.condition(1)).bodies
    node = body.kernel(kernel, 4, 64, (buffer(), 5), name="numbers")
    node.remove()
    with pytest.raises(RuntimeError, match="taken out"):
        node.update(args=(buffer(), 1))


@pytest.mark.host
@in_own_process
def test_what_the_driver_refuses_of_a_body_names_the_node_and_what_to_do():
    testing.use_device()
    definition, x = accelrt.GraphDefinition(), buffer()
    (body,) = definition.if_(definition.condition(1)).bodies
    node = body.fill(x, 5, name="ones")
    instance = definition.instantiate()
    refused = pytest.raises(
        accelrt.CudaError, match=r"memset ones> is in a body or a child.*instance\.update"
    )
    with testing.failing(rows=["graph_node_set"]), refused:
        node.update(instance=instance, value=6)


def test_a_kernel_node_is_given_another_kernel_in_an_instance(image):
    definition = accelrt.GraphDefinition()
    module = accelrt.Module(image)
    kernel = module.function("number", "uint32_t* at, uint32_t value")
    other = accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")
    x = buffer()
    node = definition.kernel(kernel, 4, 64, (x, 5))
    instance = definition.instantiate()
    node.update(instance=instance, kernel=other, args=(x, 8))
    replay(instance)
    assert (read_numbers(x) == numbers(8)).all()
    assert node.params.kernel is kernel
    kept = weakref.ref(other)
    del other
    gc.collect()
    assert kept() is not None
    replay(instance)


# --- names that tools show ---------------------------------------------------------------------------


def test_names_are_found_by_the_numbers_that_tools_show():
    definition = accelrt.GraphDefinition()
    x = buffer()
    first = definition.fill(x, 1, name="clear")
    second = definition.fill(x, 2, after=first)
    (body,) = definition.if_(definition.condition(1), after=second, name="choose").bodies
    inner = body.fill(x, 3, name="inner")
    try:
        number = first.tools_id
    except accelrt.NotSupportedError:
        if ON_HOST:
            raise
        pytest.skip("the driver tells no such numbers")
    assert definition.tool_names()[number] == "clear"
    assert sorted(definition.tool_names().values()) == ["choose", "clear"]
    assert body.tool_names() == {inner.tools_id: "inner"}
    instance = definition.instantiate()
    told = definition.tool_names(instance)
    assert sorted(told.values()) == ["choose", "clear"]
    assert {key & 0xFFFFFFFF for key in told} == {key & 0xFFFFFFFF for key in definition.tool_names()}
    assert not set(told) & set(definition.tool_names())
    with pytest.raises(RuntimeError, match="another graph's nodes"):
        accelrt.GraphDefinition().tool_names(instance)
    second.remove()
    with pytest.raises(RuntimeError, match="taken out"):
        second.tools_id  # noqa: B018


def test_names_are_in_the_drawing(tmp_path):
    definition = accelrt.GraphDefinition()
    x = buffer()
    first = definition.fill(x, 1, name='a "quoted" \\ name')
    (body,) = definition.if_(definition.condition(1), after=first).bodies
    body.fill(x, 3, name="inner")
    definition.debug_dump(tmp_path / "graph.dot")
    drawn = (tmp_path / "graph.dot").read_text()
    assert drawn.rstrip().endswith("}")
    if ON_HOST:
        assert '[xlabel="a \\"quoted\\" \\\\ name"];' in drawn
        node = f"graph_{first.tools_id >> 32}_node_{first.tools_id & 0xFFFFFFFF}"
        assert drawn.count(f'"{node}" [') == 2  # what the driver draws, and the name
    assert "inner" in drawn


def test_a_body_is_drawn_alone(tmp_path):
    definition, x = accelrt.GraphDefinition(), buffer()
    definition.fill(x, 1, name="outside")
    (body,) = definition.if_(definition.condition(1)).bodies
    body.fill(x, 2, name="inside")
    path = tmp_path / "body.dot"
    body.debug_dump(path)
    text = path.read_text().lower()
    assert text.count("memset") == 1
    assert "inside" in text
    assert "outside" not in text


def test_a_definition_ends_when_its_graph_is_reset_or_updated():
    """Handles of nodes that are gone go to no driver."""
    definition, x = accelrt.GraphDefinition(), buffer()
    node = definition.fill(x, 1)
    instance = definition.instantiate()
    graph = definition.graph
    graph.reset()
    with accelrt.graph(graph):
        x.fill(2)
        x.fill(3)
    other = accelrt.GraphDefinition()
    refused = (
        definition.nodes,
        definition.instantiate,
        definition.clone,
        node.remove,
        lambda: node.params,
        lambda: node.update(value=3),
        lambda: definition.fill(x, 3),
        lambda: other.child(definition),
        lambda: other.add_edge(node, other.empty()),
    )
    for call in refused:
        with pytest.raises(RuntimeError, match="was reset or updated since"):
            call()
    for call in (lambda: node.update(instance=instance, value=3), lambda: node.set_enabled(instance, False)):
        with pytest.raises(RuntimeError, match=r"no node of the graph|was reset or updated since"):
            call()
    with pytest.raises(RuntimeError, match="or that is gone"):
        node.name = "fill"
    assert not node.is_valid
    replay(instance)
    assert (read(x) == 1).all()
    assert len(accelrt.GraphDefinition(graph).nodes()) == 2


def test_a_node_that_is_added_later_is_none_of_what_is_instantiated(image):
    definition, kernel, x = accelrt.GraphDefinition(), kernel_of(image), buffer()
    kept = definition.fill(x, 1)
    instance = definition.instantiate()
    fill, launch = definition.fill(x, 2, after=kept), definition.kernel(kernel, 4, 64, (x, 3))
    calls = (
        lambda: fill.update(instance=instance, value=3),
        lambda: launch.update(instance=instance, args=(x, 4)),
        lambda: fill.set_enabled(instance, False),
        lambda: fill.is_enabled(instance),
    )
    for call in calls:
        with pytest.raises(
            RuntimeError, match=r"was added after the graph was instantiated.* instantiate the"
        ):
            call()
    kept.update(instance=instance, value=5)
    replay(instance)
    assert (read(x, np.uint8) == 5).all()
    fill.update(value=3)
    launch.remove()
    instance = definition.instantiate()
    fill.update(instance=instance, value=6)
    replay(instance)
    assert (read(x, np.uint8) == 6).all()


def test_a_node_that_is_added_to_an_instantiated_graph_waits_for_the_next_time(image):
    x, graph = buffer(), accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        x.fill(1)
    graph.instantiate()
    definition, kernel = accelrt.GraphDefinition(graph), kernel_of(image)
    fill = definition.fill(x, 2, after=definition.nodes())
    launch = definition.kernel(kernel, 4, 64, (buffer(), 3))
    for call in (lambda: fill.update(value=3), lambda: launch.update(args=(x, 4))):
        with pytest.raises(RuntimeError, match="was added after the graph was instantiated"):
            call()
    definition.nodes()[0].update(value=4)
    replay(graph)
    assert (read(x, np.uint8) == 4).all()
    graph.instantiate()
    fill.update(value=3)
    replay(graph)
    assert (read(x, np.uint8) == 3).all()


def test_the_graphs_that_a_node_owned_are_gone_with_it():
    definition, inner, x = accelrt.GraphDefinition(), accelrt.GraphDefinition(), buffer()
    inner.fill(x, 1)
    child = definition.child(inner)
    nested = child.params.child(inner)
    parts, nodes = [child.params, nested.params], child.params.nodes() + nested.params.nodes()
    other = accelrt.GraphDefinition()
    other.empty()
    child.update(graph=other)
    assert [node.type for node in child.params.nodes()] == ["empty"]
    assert [node.type for node in parts[0].nodes()] == ["empty"]  # what the node owns now
    with pytest.raises(RuntimeError, match="taken out of its graph"):
        parts[1].nodes()
    for node in nodes:
        with pytest.raises(RuntimeError, match="taken out of its graph"):
            node.update(value=2)
    branch = definition.if_(definition.condition(1))
    (body,) = branch.bodies
    parts, node = [child.params, body], body.fill(x, 2)
    child.remove()
    branch.remove()
    for part in parts:
        for call in (part.nodes, lambda part=part: part.fill(x, 3), lambda part=part: other.child(part)):
            with pytest.raises(RuntimeError, match="taken out of its graph"):
                call()
    with pytest.raises(RuntimeError, match="taken out of its graph"):
        node.update(value=2)
    assert definition.nodes() == []


@pytest.mark.parametrize("kind", ["child", "condition"])
def test_what_another_thread_adds_to_a_graph_goes_with_the_node_that_owns_it(kind):
    """Here the other thread has its turn at each line of the change."""
    definition, other, x, added = accelrt.GraphDefinition(), accelrt.GraphDefinition(), buffer(), []
    node = definition.child(other) if kind == "child" else definition.if_(definition.condition())
    part = node.params if kind == "child" else node.bodies[0]

    def meanwhile(frame, event, argument):
        if "graphs" in frame.f_code.co_filename:
            with contextlib.suppress(RuntimeError):
                added.append(part.fill(x, 1))
        return meanwhile

    sys.settrace(meanwhile)
    try:
        if kind == "child":
            node.update(graph=other)
        else:
            node.remove()
    finally:
        sys.settrace(None)
    left = node.params.nodes() if kind == "child" else []
    assert added
    assert {each for each in added if each.is_valid} <= set(left)


def test_what_is_no_node_or_condition_is_refused():
    definition = accelrt.GraphDefinition()
    node = definition.empty()
    for call in (
        lambda: definition.find_in_clone(5),
        lambda: definition.add_edge(node.id, node),
        lambda: definition.remove_edge(node, None),
    ):
        with pytest.raises(TypeError, match="pass a DefinitionNode"):
            call()
    with pytest.raises(TypeError, match=r"GraphDefinition\.condition returns"):
        definition.set_condition(7, 4096)
    (body,) = definition.if_(definition.condition()).bodies
    for register in (body.register_instantiate_hook, body.register_instantiate_pre_hook):
        with pytest.raises(RuntimeError, match="instantiated with the graph"):
            register(print)


@pytest.mark.parametrize("wrong", [None, 5, 1.5, object()], ids=type)
def test_what_is_no_sequence_is_refused_with_what_to_pass(wrong, tmp_path):
    definition = accelrt.GraphDefinition()
    with pytest.raises(TypeError, match=r"after is .*pass a DefinitionNode, or several"):
        definition.empty(after=wrong)
    with pytest.raises(TypeError, match=r"peers is .*pass ordinals of devices"):
        definition.allocate(64, peers=wrong)
    with pytest.raises(TypeError, match=r"flags is .*pass some of"):
        definition.debug_dump(tmp_path / "drawing.dot", flags=wrong)
    assert not definition.nodes()


def test_what_an_instance_is_asked_to_do_is_true_or_false():
    """A number above 1 would be other flags of the driver's."""
    definition = accelrt.GraphDefinition()
    node = definition.allocate(64)
    graph = definition.instantiate(auto_free=2, device_launch=0, node_priorities=None)
    for _ in range(2):
        graph.replay()
    accelrt.synchronize()
    accelrt.free_graph_memory(node)
    accelrt.synchronize()


def test_a_graph_is_a_child_of_itself_as_it_was():
    definition, x = accelrt.GraphDefinition(), buffer()
    definition.fill(x, 1)
    node = definition.child(definition)
    assert [each.type for each in node.params.nodes()] == ["memset"]
    replay(definition.instantiate())
    assert (read(x) == 1).all()


def test_a_part_of_a_graph_is_given_to_an_instance():
    definition, inner, x = accelrt.GraphDefinition(), accelrt.GraphDefinition(), buffer()
    inner.fill(x, 1)
    node = definition.child(inner)
    instance = definition.instantiate()
    (fill,) = node.params.nodes()
    fill.update(value=7)
    replay(instance)
    assert (read(x) == 1).all()
    node.update(instance=instance, graph=node.params)
    replay(instance)
    assert (read(x) == 7).all()
    assert node.params.nodes() == [fill]


def test_a_graph_is_a_child_of_what_is_within_it():
    definition, inner, x = accelrt.GraphDefinition(), accelrt.GraphDefinition(), buffer()
    calls = []
    inner.fill(x, 1)
    definition.host_function(lambda: calls.append(1))
    node = definition.child(inner)
    nested = node.params.child(definition)  # a function, and a fill in a child
    assert [each.type for each in nested.params.nodes()] == ["host", "graph"]
    definition.child(node.params)  # of the same whole
    definition.child(definition).update(graph=definition)
    replay(definition.instantiate())
    assert (read(x) == 1).all()
    assert len(calls) > 3
    (called,) = (each for each in nested.params.nodes() if each.type == "host")
    assert called.params is not None
    called.remove()
    assert [each.type for each in nested.params.nodes()] == ["graph"]


def test_a_graph_that_cannot_be_cloned_is_no_child_of_itself():
    definition, x = accelrt.GraphDefinition(), buffer()
    (body,) = definition.if_(definition.condition(1)).bodies
    body.fill(x, 1)
    for part in (definition, body):
        with pytest.raises(accelrt.CudaError, match=r"graph_clone.*make it a GraphDefinition of its own"):
            part.child(definition)
    assert [node.type for node in definition.nodes()] == ["conditional"]
    captured = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(captured):
        x.fill(2)
        part = accelrt.GraphDefinition(captured)
        with pytest.raises(RuntimeError, match="once its capture has ended"):
            part.child(part)
    replay(definition.instantiate())
    assert (read(x) == 1).all()


def test_bodies_hold_no_functions_events_or_memory():
    """Some drivers take these, and refuse to instantiate the graph then."""
    definition, x, event = accelrt.GraphDefinition(), buffer(), accelrt.Event()
    event.record()
    (body,) = definition.if_(definition.condition(1)).bodies
    plain, calls, nested = accelrt.GraphDefinition(), accelrt.GraphDefinition(), accelrt.GraphDefinition()
    plain.fill(x, 1)
    calls.host_function(gc.collect)
    nested.child(calls)
    child = body.child(plain)
    (deeper,) = body.if_(body.condition(1)).bodies
    for part in (body, child.params, deeper):
        for add in (
            lambda part=part: part.host_function(gc.collect),
            lambda part=part: part.record(event),
            lambda part=part: part.wait(event),
            lambda part=part: part.allocate(COUNT),
            lambda part=part: part.free(x.ptr),
            lambda part=part: part.child(calls),
            lambda part=part: part.child(nested),
        ):
            with pytest.raises(accelrt.NotSupportedError, match="a body of a condition takes kernels"):
                add()
    with pytest.raises(accelrt.NotSupportedError, match="a body of a condition takes kernels"):
        child.update(graph=nested)
    replay(definition.instantiate())
    assert (read(x) == 1).all()


@pytest.mark.host
@in_own_process
def test_what_a_refused_change_gave_the_instance_is_kept():
    """The graph refuses what its instance took."""
    testing.use_device()
    x, new = buffer(), buffer()
    definition = accelrt.GraphDefinition()
    node = definition.fill(x, 5)
    graph = definition.graph
    graph.instantiate()
    with testing.failing(2, rows=["graph_node_set"]), pytest.raises(accelrt.CudaError):
        node.update(dst=new)
    kept = weakref.ref(new)
    del new
    assert kept() is not None
    replay(graph)
    assert (read(kept()) == 5).all()
    node.update(dst=x)
    assert kept() is None
    new = buffer()
    with testing.failing(1, rows=["graph_node_set"]), pytest.raises(accelrt.CudaError):
        node.update(dst=new)
    kept = weakref.ref(new)
    del new
    assert kept() is None  # nobody took it


@pytest.mark.host
@in_own_process
def test_nothing_that_another_thread_drops_goes_to_the_driver():
    """One thread stops at each call of the driver's, and the other one resets a graph or takes a node out."""
    testing.use_device()
    x = buffer()

    def scene(operation, drops):
        inner, outer = accelrt.GraphDefinition(), accelrt.GraphDefinition()
        nodes = [inner.fill(x, 1), inner.fill(x, 2)]
        instance = inner.instantiate()
        return lambda: operation(inner, outer, nodes[0], instance), lambda: drops(inner, nodes[0])

    operations = (
        lambda inner, outer, node, instance: outer.child(inner),
        lambda inner, outer, node, instance: inner.nodes(),
        lambda inner, outer, node, instance: node.params,
        lambda inner, outer, node, instance: node.update(instance=instance, value=4),
        lambda inner, outer, node, instance: node.set_enabled(instance, False),
        lambda inner, outer, node, instance: inner.clone(),
    )
    drops = (lambda inner, node: inner.graph.reset(), lambda inner, node: node.remove())
    interleaver, ends = Interleaver(), []
    for operation, drop in itertools.product(operations, drops):
        for (number, _), when in itertools.product(
            interleaver.places(scene(operation, drop)[0]), ("before", "after")
        ):
            ends += interleaver.run_beside(*scene(operation, drop), number, when)
    interleaver.close()
    assert len(ends) > 40
    for end in ends:
        assert end.error is None or type(end.error) is RuntimeError, end.error
