"""Graphs with arguments: memory that replays are given anew, and what is refused since it is not sure."""

import gc
import threading
import weakref

import numpy as np
import pytest
from child import in_own_process
from graph_memory import filled, read, read_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_sources import image_for, numbers

import accelrt
from accelrt import testing

COUNT = 256
BYTES = 4 * COUNT
NUMBER = "uint32_t* at, uint32_t value"


def number_of(image):
    return accelrt.Module(image).function("number", NUMBER)


def buffer(value=0, nbytes=BYTES):
    return filled(nbytes, value)


def captured(work):
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        work()
    return graph


def array(values):
    made = accelrt.Buffer(np.asarray(values).nbytes)
    accelrt.copy(made, np.ascontiguousarray(values))
    return made


def test_a_replay_reads_and_writes_the_memory_that_it_is_given(image):
    saxpy = accelrt.Module(image).function("saxpy", "float a, const float* x, float* y, uint32_t n")
    x, y = array(np.arange(COUNT, dtype=np.float32)), array(np.ones(COUNT, np.float32))
    graph = captured(lambda: saxpy[4, 64](2.0, x, y, COUNT))
    arguments = accelrt.GraphParameters(graph, x=x, y=y)
    assert list(arguments) == ["x", "y"]
    (use,) = arguments["x"].uses
    assert (use.type, use.name, use.argument, use.word, use.offset, use.access) == (
        "kernel",
        "saxpy",
        1,
        0,
        0,
        "r",
    )
    assert (arguments["y"].access, arguments["y"].nbytes, arguments["y"].address) == ("rw", BYTES, y.ptr)
    other, out = array(np.full(COUNT, 5, np.float32)), array(np.zeros(COUNT, np.float32))
    arguments.replay(x=other, y=out)
    assert (read(out, np.float32) == 10).all()
    assert (read(y, np.float32) == 1).all()
    arguments.replay(x=x)
    assert (read(out, np.float32) == 10 + 2 * np.arange(COUNT)).all()
    arguments.replay()
    assert (read(out, np.float32) == 10 + 4 * np.arange(COUNT)).all()
    assert "x, y" in repr(arguments)


def test_copies_and_fills_are_given_other_memory_with_their_offsets(image):
    number = number_of(image)
    x, y = buffer(1), buffer(2)

    def work():
        accelrt.fill(x, 3, 64, offset=32)
        accelrt.copy(y, x, 128, dst_offset=16, blocking=False)
        number[1, 16](y, 7)

    arguments = accelrt.GraphParameters(captured(work), x=x, y=y)
    assert [use.offset for use in arguments["x"].uses] == [32, 0]
    assert [(use.argument, use.offset) for use in arguments["y"].uses] == [("dst", 16), (0, 0)]
    to, origin = buffer(8), buffer(9)
    arguments.replay(y=to, x=origin)
    expected = np.full(BYTES, 9, np.uint8)
    expected[32:96] = 3
    assert (read(origin) == expected).all()
    copied = np.full(BYTES, 8, np.uint8)
    copied[16:144] = expected[:128]
    copied[:64] = numbers(7, 16).view(np.uint8)
    assert (read(to) == copied).all()
    assert (read(x) == 1).all()
    assert (read(y) == 2).all()


def test_an_instance_of_a_definition_is_given_other_memory(image):
    number = number_of(image)
    definition, x, y = accelrt.GraphDefinition(), buffer(), buffer()
    launch = definition.kernel(number, 4, 64, (x, 5))
    definition.copy(y, x, after=launch)
    graph = definition.instantiate()
    arguments = accelrt.GraphParameters(graph, x=x, y=y)
    new = buffer()
    arguments.replay(x=new)
    assert (read_numbers(y) == numbers(5)).all()
    assert (read_numbers(x) == 0).all()
    launch.update(instance=graph, args=(x, 6))
    with pytest.raises(RuntimeError, match="make other GraphParameters"):
        arguments.rebind(x=x)
    with pytest.raises(RuntimeError, match="changed by hand"):
        accelrt.GraphParameters(graph, x=x)


def test_what_is_given_is_kept_alive_and_given_up_with_the_next(image):
    number = number_of(image)
    x = buffer()
    graph = captured(lambda: number[4, 64](x, 5))
    arguments = accelrt.GraphParameters(graph, x=x)
    first, second = buffer(), buffer()
    watched = weakref.ref(first)
    arguments.replay(x=first)
    del first
    gc.collect()
    assert watched() is not None
    arguments.replay(x=second)
    accelrt.synchronize()
    gc.collect()
    assert watched() is None
    assert (read_numbers(second) == numbers(5)).all()


def test_many_changes_leave_nothing_behind(image):
    number = number_of(image)
    x = buffer()
    graph = captured(lambda: number[4, 64](x, 5))
    arguments = accelrt.GraphParameters(graph, x=x)
    others = [buffer(), buffer()]
    arguments.replay(x=others[0])
    accelrt.synchronize()
    before = accelrt.memory_allocated()
    for index in range(2000):
        arguments.rebind(x=others[index % 2])
    assert accelrt.memory_allocated() == before
    assert len(gc.get_referrers(others[0])) < 20


def test_nothing_is_kept_that_the_graph_uses_no_more(image):
    number = number_of(image)
    x = buffer()
    graph = captured(lambda: number[4, 64](x, 5))
    arguments = accelrt.GraphParameters(graph, x=x)
    for _ in range(3):
        last = buffer()
        arguments.rebind(x=last)
    watched = weakref.ref(last)
    del last
    graph.instantiate()  # with what was captured
    gc.collect()
    assert watched() is None
    graph.replay()
    assert (read_numbers(x) == numbers(5)).all()


class Rebinding:
    """Memory whose interface, read, gives x and y other memory; the instance has it, for 3.13 without a GIL
    keeps classes for ever."""

    def __init__(self, arguments, within, outer):
        self.arguments, self.within, self.outer = arguments, within, outer

    @property
    def __cuda_array_interface__(self):
        self.arguments.rebind(x=self.within, y=self.within)
        return {"shape": (COUNT,), "typestr": "<u4", "data": (self.outer.ptr, False), "version": 3}


def test_memory_whose_interface_gives_the_graph_other_memory(image):
    number = number_of(image)
    x, y = buffer(), buffer()

    def work():
        number[4, 64](x, 5)
        number[4, 64](y, 6)

    arguments = accelrt.GraphParameters(captured(work), x=x, y=y)
    within, outer, first = buffer(), buffer(), buffer()

    arguments.replay(x=first, y=Rebinding(arguments, within, outer))  # the call within comes first
    assert (read_numbers(first) == numbers(5)).all()
    assert (read_numbers(outer) == numbers(6)).all()
    assert (read_numbers(within) == 0).all()
    arguments.replay(x=within)
    assert (read_numbers(within) == numbers(5)).all()


def test_what_names_no_memory_gives_none():
    nameless = accelrt.GraphParameters.__new__(accelrt.GraphParameters)
    for call in (nameless.rebind, nameless.replay):
        with pytest.raises(RuntimeError, match=r"make GraphParameters\(graph, x=x\)"):
            call()


def test_a_kernel_without_a_signature_is_refused_unless_a_twin_shows_it(image):
    module = accelrt.Module(image)
    kernel = module.function("number")
    x, y = buffer(), buffer()
    graph, twin = (captured(lambda memory=memory: kernel[4, 64](memory, np.uint32(5))) for memory in (x, y))
    with pytest.raises(
        ValueError, match=r"argument 0 of the kernel node 'number' .* may be an address of x, or a number"
    ):
        accelrt.GraphParameters(graph, x=x)
    arguments = accelrt.GraphParameters(graph, twin=twin, x=(x, y))
    new = buffer()
    arguments.replay(x=new)
    assert (read_numbers(new) == numbers(5)).all()
    assert (read_numbers(x) == 0).all()
    same = captured(lambda: kernel[4, 64](x, np.uint32(5)))
    with pytest.raises(ValueError, match="no node of the graph uses x"):
        accelrt.GraphParameters(graph, twin=same, x=(x, y))
    third = buffer()
    other = captured(lambda: kernel[4, 64](third, np.uint32(5)))
    with pytest.raises(ValueError, match="in the twin it does not"):
        accelrt.GraphParameters(graph, twin=other, x=(x, y))
    longer = captured(lambda: (kernel[4, 64](y, np.uint32(5)), y.fill(0)))
    with pytest.raises(ValueError, match="other nodes"):
        accelrt.GraphParameters(graph, twin=longer, x=(x, y))


def test_what_cannot_be_said_for_sure_is_refused(image):
    block = buffer(0, 2 * BYTES)
    low = accelrt.asarray(block)[:BYTES]
    x, flag = buffer(), buffer(1)
    pinned = accelrt.PinnedBuffer(BYTES)

    def conditional(graph):
        with accelrt.graph(graph), graph.if_(flag):
            x.fill(1)
        return graph

    branched = conditional(accelrt.CUDAGraph(keep_graph=True))
    called = captured(
        lambda: (
            accelrt.copy(x, pinned, blocking=False),
            accelrt.current_stream().launch_host_func(gc.collect),
        )
    )
    refused = [
        (captured(lambda: block.fill(1)), {"low": low}, "goes beyond low"),
        (captured(lambda: x.fill(1)), {"x": x, "y": x}, "share memory"),
        (captured(lambda: x.fill(1)), {"x": flag}, "no node of the graph uses x"),
        (branched, {"x": x}, "cannot be told"),
        (called, {"pinned": pinned}, "the host node .* may use"),
    ]
    for graph, memory, text in refused:
        with pytest.raises(ValueError, match=text):
            accelrt.GraphParameters(graph, **memory)
    child = accelrt.GraphDefinition()
    child.fill(x, 1)
    definition = accelrt.GraphDefinition()
    definition.child(child)
    with pytest.raises(ValueError, match="in a child"):
        accelrt.GraphParameters(definition.instantiate(), x=x)
    graph = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(graph):
        inner = buffer()
    with pytest.raises(ValueError, match="pool"):
        accelrt.GraphParameters(graph, inner=inner)
    with pytest.raises(TypeError, match="no memory was named"):
        accelrt.GraphParameters(graph)
    with pytest.raises(TypeError, match="ordinary host memory"):
        accelrt.GraphParameters(graph, x=np.zeros(4))


def test_an_address_where_memory_ends_is_other_memorys_or_refused(image):
    number = number_of(image)
    x, y = buffer(), buffer()
    graph = captured(lambda: (x.fill(1), number[4, 64](y, 5)))
    assert len(accelrt.GraphParameters(graph, x=x)["x"].uses) == 1
    definition = accelrt.GraphDefinition()
    definition.fill(x, 1)
    definition.kernel(number, 1, 1, (x.ptr + BYTES, 5))
    with pytest.raises(ValueError, match="where x ends"):
        accelrt.GraphParameters(definition.instantiate(), x=x)


def test_memory_that_does_not_fit_is_refused_and_nothing_is_changed(image):
    number = number_of(image)
    x, y = buffer(), buffer()
    graph = captured(lambda: (number[4, 64](x, 5), y.fill(1)))
    arguments = accelrt.GraphParameters(graph, x=x, y=y)
    freed = buffer()
    freed.free()
    bytes_ = accelrt.empty(2 * BYTES, "uint8")
    refused = [
        ({"z": y}, TypeError, "no memory named 'z'; it has x, y"),
        ({"x": accelrt.Buffer(BYTES // 2)}, ValueError, "has 512 bytes; what was captured has 1024"),
        ({"x": freed}, ValueError, "freed"),
        ({"x": np.zeros(BYTES, np.uint8)}, ValueError, "device -1"),
        ({"x": bytes_[1 : BYTES + 1]}, ValueError, "less aligned"),
        ({"y": y, "x": 5}, TypeError, "x"),
    ]
    for memory, kind, text in refused:
        with pytest.raises(kind, match=text):
            arguments.rebind(**memory)
    arguments.replay()
    assert (read_numbers(x) == numbers(5)).all()
    assert (read(y) == 1).all()


@pytest.mark.own_process
@in_own_process(ACCELRT_SANITIZE="1")
def test_the_race_detector_knows_what_a_replay_uses_instead():
    x, y, other = buffer(), buffer(), accelrt.Stream()
    other.wait_stream(accelrt.current_stream())
    arguments = accelrt.GraphParameters(captured(lambda: x.fill(3)), x=x)
    arguments.replay(x=y)
    with accelrt.stream(other):
        x.fill(4)
        with pytest.raises(accelrt.RaceError):
            y.fill(4)
    accelrt.synchronize()


OPERATIONS = st.one_of(
    st.tuples(
        st.just("fill"), st.integers(0, 3), st.integers(0, 255), st.integers(0, 15), st.integers(1, 16)
    ),
    st.tuples(st.just("copy"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 15), st.integers(1, 16)),
    st.tuples(st.just("number"), st.integers(0, 3), st.integers(0, 1 << 30), st.integers(0, 3)),
    st.tuples(st.just("saxpy"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.just("inner"), st.integers(0, 3), st.integers(0, 3)),
)


def perform(operations, memory, number, saxpy):
    """Puts random work on four buffers into the current stream."""
    for kind, first, *rest in operations:
        to = memory[first]
        if kind == "fill":
            value, start, count = rest
            accelrt.fill(to, value, min(count, 16 - start) * 64, offset=start * 64)
        elif kind == "copy":
            other, start, count = rest
            if other != first:
                accelrt.copy(
                    to, memory[other], min(count, 16 - start) * 64, dst_offset=start * 64, blocking=False
                )
        elif kind == "number":
            value, start = rest
            number[1, 64](accelrt.asarray(to).view("uint32")[64 * start :], value)
        elif kind == "saxpy":
            other, blocks = rest
            saxpy[4, 64](2.0, memory[other], to, 64 * blocks)
        else:
            temporary = accelrt.Buffer(BYTES)
            accelrt.copy(temporary, to, blocking=False)
            accelrt.copy(memory[rest[0]], temporary, blocking=False)


@settings(max_examples=60, deadline=None)
@given(
    operations=st.lists(OPERATIONS, min_size=1, max_size=12),
    rounds=st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 1 << 30)), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
def test_random_graphs_with_random_memory_do_what_eager_work_does(image, operations, rounds, seed):
    module = accelrt.Module(image)
    number = module.function("number", NUMBER)
    saxpy = module.function("saxpy", "float a, const float* x, float* y, uint32_t n")
    random = np.random.default_rng(seed)

    def fresh():
        return array(random.integers(0, 1 << 16, COUNT, np.uint32))

    memory = [fresh() for _ in range(4)]
    graph = captured(lambda: perform(operations, memory, number, saxpy))
    names = {}
    for index, each in enumerate(memory):
        try:
            accelrt.GraphParameters(graph, m=each)
            names[f"m{index}"] = each
        except ValueError as error:
            if "no node of the graph uses m" not in str(error):
                raise
    if not names:
        return
    arguments = accelrt.GraphParameters(graph, **names)
    for given_ in rounds:
        changed = {f"m{index}": fresh() for index in given_ if f"m{index}" in names}
        memory = [changed.get(f"m{index}", each) for index, each in enumerate(memory)]
        expected = [array(read_numbers(each)) for each in memory]
        perform(operations, expected, number, saxpy)
        arguments.replay(**changed)
        for have, wanted in zip(memory, expected, strict=True):
            assert (read(have) == read(wanted)).all()


def copied(y, x):
    return captured(lambda: accelrt.copy(y, x, blocking=False))


def test_what_was_given_in_its_own_place_is_kept_under_other_names(image):
    """Memory that lies where what was captured lay, as after a free and an allocation."""
    number = number_of(image)
    x, z = accelrt.zeros(COUNT, "u4"), buffer()
    graph = captured(lambda: (number[4, 64](x, 5), number[4, 64](z, 6)))
    arguments = accelrt.GraphParameters(graph, x=x)
    here = x[:]
    watched = weakref.ref(here)
    arguments.rebind(x=here)
    del here
    accelrt.GraphParameters(graph, z=z).replay(z=buffer())
    gc.collect()
    assert watched() is not None
    again = accelrt.GraphParameters(graph, x=x)
    again.replay(x=buffer())
    gc.collect()
    assert watched() is None
    graph.reset()


@pytest.mark.host
@in_own_process
def test_what_the_instance_has_is_kept_where_the_driver_refuses_other_memory():
    testing.use_device()
    x, y = buffer(3), buffer()
    arguments = accelrt.GraphParameters(copied(y, x), x=x, y=y)
    first, second = buffer(), buffer()
    arguments.replay(y=first)
    with testing.failing(rows=["graph_node_set"]), pytest.raises(accelrt.CudaError):
        arguments.rebind(y=second)
    kept, refused = weakref.ref(first), weakref.ref(second)
    del first, second
    gc.collect()
    assert refused() is None
    arguments.replay()
    assert (read(kept()) == 3).all()
    arguments.replay(y=y)
    accelrt.synchronize()
    assert kept() is None


def test_other_names_go_on_with_the_memory_that_was_given(image):
    number = number_of(image)
    x, y, z = buffer(1), buffer(2), buffer(3)

    def work():
        accelrt.copy(y, x, blocking=False)
        accelrt.copy(z, x, blocking=False)
        number[1, 16](y, 7)

    graph = captured(work)
    first = accelrt.GraphParameters(graph, x=x)
    given, to, last = buffer(8), buffer(4), buffer(5)
    first.rebind(x=given)
    second = accelrt.GraphParameters(graph, x=y)  # the same name, of other memory
    second.replay(x=to)
    kept = weakref.ref(given)
    del given
    assert kept() is not None
    assert (read(to)[64:] == 8).all()
    assert (read_numbers(to)[:16] == numbers(7, 16)).all()
    assert (read(z) == 8).all()
    with pytest.raises(RuntimeError, match="make other GraphParameters"):
        first.rebind(x=x)
    third = accelrt.GraphParameters(graph, z=z, x=x)  # of what was given under both names before
    third.replay(z=last)
    assert (read(last) == 8).all()
    third.replay(x=x)
    accelrt.synchronize()
    assert kept() is None
    assert (read(to)[64:] == 1).all()
    with pytest.raises(ValueError, match=r"beyond|a part of memory"):
        accelrt.GraphParameters(graph, part=accelrt.Array(y, (16,), "u1"))
    graph.instantiate()
    y.fill(0)
    accelrt.GraphParameters(graph, z=z).replay(z=last)
    assert (read(y)[64:] == 1).all()  # anew: the memory of the capture


def test_an_instance_of_nodes_that_were_changed_since_is_refused():
    x, y, z = buffer(1), buffer(), buffer()
    for change in (lambda node: node.update(dst=z), lambda node: node.remove()):
        definition = accelrt.GraphDefinition()
        node = definition.copy(y, x)
        graph = definition.instantiate()
        arguments = accelrt.GraphParameters(graph, x=x)
        change(node)
        with pytest.raises(RuntimeError, match="instantiate it anew"):
            accelrt.GraphParameters(graph, x=x)
        graph.replay()
        assert (read(y) == 1).all()
        definition.graph.reset()
        with pytest.raises(RuntimeError, match=r"make other GraphParameters|no graph is kept|is gone"):
            arguments.rebind(x=z)


def test_a_change_by_hand_leaves_the_memory_that_names_gave(image):
    number = number_of(image)
    definition, x, y, z = accelrt.GraphDefinition(), buffer(1), buffer(), buffer(7)
    copy = definition.copy(y, x)
    fill = definition.fill(x, 2, 16, after=copy)
    launch = definition.kernel(number, 1, 16, (y, 5), after=fill)
    instance = definition.instantiate()
    other, last = buffer(), buffer()
    arguments = accelrt.GraphParameters(instance, x=x, y=y)
    arguments.rebind(x=z, y=other)
    copy.update(instance=instance, dst=last)
    fill.update(instance=instance, value=3)
    launch.update(instance=instance, grid=4, block=64)
    gc.collect()
    instance.replay()
    assert (read(last) == 7).all()
    assert (read(z)[:16] == 3).all()
    assert (read_numbers(other) == numbers(5)).all()
    assert (read(x) == 1).all()
    assert (read(y) == 0).all()
    definition.instantiate().replay()  # the definition has what it had
    assert (read(x)[:16] == 2).all()


@pytest.mark.host
@in_own_process
def test_a_change_by_hand_that_was_refused_is_none():
    testing.use_device()
    definition, x, y, z = accelrt.GraphDefinition(), buffer(1), buffer(), buffer(7)
    copy = definition.copy(y, x)
    launch = definition.kernel(number_of(image_for("host")), 1, 16, (y, 5), after=copy)
    instance = definition.instantiate()
    arguments = accelrt.GraphParameters(instance, x=x)
    for changed in (instance, None):
        for node, change in ((copy, {"dst": z}), (launch, {"grid": 4})):
            with testing.failing(rows=["graph_node_set"]), pytest.raises(accelrt.CudaError):
                node.update(instance=changed, **change)
    arguments.replay(x=z)
    assert (read(y)[64:] == 7).all()
    accelrt.GraphParameters(instance, y=y).replay(y=x)
    assert (read(x)[64:] == 7).all()


def test_nodes_that_came_after_the_instance_have_no_names():
    definition, x, y, z = accelrt.GraphDefinition(), buffer(1), buffer(), buffer(7)
    definition.copy(y, x)
    instance = definition.instantiate()
    definition.fill(x, 3, after=definition.nodes())
    arguments = accelrt.GraphParameters(instance, x=x)
    assert [use.type for use in arguments["x"].uses] == ["memcpy"]
    arguments.replay(x=z)
    assert (read(y) == 7).all()
    assert len(accelrt.GraphParameters(definition.instantiate(), x=x)["x"].uses) == 2


def test_replays_of_threads_each_use_the_memory_that_they_are_given():
    x, y = buffer(), buffer()
    arguments = accelrt.GraphParameters(copied(y, x), x=x, y=y)
    wrong = []

    def replay(value):
        with accelrt.stream(accelrt.Stream()):
            origin, out = buffer(value), buffer()  # filled in the order of the stream that replays
            for _ in range(100):
                out.fill(0)
                arguments.replay(x=origin, y=out)
                wrong.extend(set(read(out).tolist()) - {value})

    threads = [threading.Thread(target=replay, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_change_by_hand_counts_where_the_definition_was_changed_before():
    # As many changes of the one as of the other.
    definition, x, y, z, other = accelrt.GraphDefinition(), buffer(1), buffer(), buffer(), buffer()
    copy = definition.copy(y, x)
    copy.update(dst=y)
    instance = definition.instantiate()
    accelrt.GraphParameters(instance, y=y).rebind(y=other)
    copy.update(instance=instance, dst=z)
    copy.update(instance=instance, nbytes=16)
    instance.replay()
    assert (read(z)[:16] == 1).all()
    assert (read(other) == 0).all()


def test_copies_of_rows_have_no_names_and_stay_as_they_were_made():
    definition, x, y, z = accelrt.GraphDefinition(), buffer(1), buffer(), buffer()
    rows = definition.copy_3d(y, x, 8, 4, dst_pitch=16, src_pitch=16)
    row = definition.copy_3d(y, x, 8, dst_offset=64)
    instance, width = definition.instantiate(), row.params.width
    with pytest.raises(ValueError, match=r"the memcpy node 0x\w+ copies rows of y, and an instance goes on"):
        accelrt.GraphParameters(instance, y=y)
    with pytest.raises(accelrt.CudaError, match="an instance goes on with the copies of rows"):
        rows.update(instance=instance, dst=z)
    row.update(instance=instance, dst=z)
    instance.replay()
    assert read(y)[:24].tolist() == [1] * 8 + [0] * 8 + [1] * 8
    assert width == 8
    rows.update(dst=z)
    with pytest.raises(accelrt.CudaError, match="PARAMETERS_CHANGED"):
        instance.update(definition.graph)
    definition.instantiate().replay()
    assert read(z)[16:24].tolist() == [1] * 8


def test_an_instance_keeps_the_rows_of_fills_and_the_kinds_of_memory_of_copies():
    definition, x, y, pinned = accelrt.GraphDefinition(), buffer(1), buffer(), accelrt.PinnedBuffer(64)
    several = definition.fill(y, 2, 4, width=2, height=3, pitch=16)
    one, copy = definition.fill(x, 3, 4), definition.copy(y, x, 16, dst_offset=48)
    instance = definition.instantiate()
    changes = ({"count": 2}, {"height": 2}, {"pitch": 32}, {"width": 1}, {"height": 1, "pitch": None})
    for node, change in (*((several, change) for change in changes), (one, {"height": 2, "pitch": 8})):
        with pytest.raises(accelrt.CudaError, match="takes other memory and another value alone"):
            node.update(instance=instance, **change)
    for change in ({"src": pinned}, {"dst": pinned, "dst_offset": 0}):
        with pytest.raises(accelrt.CudaError, match="device memory or the host's"):
            copy.update(instance=instance, **change)
    several.update(instance=instance, value=0x0505)
    one.update(instance=instance, count=2, width=4, value=0x07070707)
    instance.replay()
    assert read(y)[:48].tolist() == ([5] * 8 + [0] * 8) * 3
    assert read(x)[:10].tolist() == [7] * 8 + [1] * 2
    several.update(count=3)
    with pytest.raises(accelrt.CudaError, match="PARAMETERS_CHANGED"):
        instance.update(definition.graph)
