"""copy_many: many copies in one call, of objects and of addresses."""

import gc

import numpy as np
import pytest
from beside import Gate, on_threads
from child import in_own_process
from hypothesis import given, settings
from hypothesis import strategies as st

import accelrt

PIECE, COUNT = 4096, 48


def filled(count=COUNT, piece=PIECE):
    """A Buffer of so many pieces, each with its own value, and page-locked memory of as many."""
    pinned = accelrt.PinnedBuffer(count * piece)
    np.frombuffer(pinned, np.uint8).reshape(count, piece)[:] = np.arange(count, dtype=np.uint8)[:, None]
    return accelrt.Buffer(count * piece), pinned


def places(memory, order):
    return np.uint64(memory.ptr) + np.asarray(order, np.uint64) * np.uint64(PIECE)


def contents(buffer, dtype=np.uint8):
    out = np.empty(buffer.nbytes, np.uint8)
    buffer.copy_to(out)
    return out.view(dtype)


def test_sequences_of_objects_are_copied_in_pairs():
    sources = [accelrt.full(100, n, "u1") for n in range(20)]
    targets = [accelrt.Buffer(100 + n) for n in range(20)]
    accelrt.copy_many(targets, sources)
    assert [contents(target)[:100].tolist() for target in targets] == [[n] * 100 for n in range(20)]


@pytest.mark.parametrize("stream", [None, "own", "legacy"])
def test_arrays_of_addresses_are_copied_in_pairs(stream):
    on = {None: None, "own": accelrt.Stream(), "legacy": 0}[stream]
    buffer, pinned = filled()
    order = np.random.default_rng(1).permutation(COUNT)
    accelrt.copy_many(
        places(buffer, order), places(pinned, range(COUNT)), PIECE, memory=[buffer, pinned], stream=on
    )
    accelrt.synchronize()
    assert (contents(buffer).reshape(COUNT, PIECE)[order, 0] == np.arange(COUNT)).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_sizes_are_one_or_one_for_each(data):
    buffer, pinned = filled()
    expected = np.zeros((COUNT, PIECE), np.uint8)
    buffer.fill(0)
    chosen = data.draw(st.lists(st.integers(0, COUNT - 1), unique=True))
    sizes = np.array([data.draw(st.integers(0, PIECE)) for _ in chosen], np.int64)
    named = data.draw(st.sampled_from([(), (buffer,), (buffer, pinned)]))
    accelrt.copy_many(places(buffer, chosen), places(pinned, chosen), sizes, memory=named)
    for place, size in zip(chosen, sizes, strict=True):
        expected[place, :size] = place
    assert (contents(buffer) == expected.ravel()).all()


def test_one_side_may_be_addresses_and_lists_of_ints_do():
    buffer, pinned = filled()
    targets = [accelrt.Buffer(PIECE) for _ in range(4)]
    accelrt.copy_many([target.ptr for target in targets], places(pinned, range(4)), [PIECE] * 4)
    accelrt.copy_many(places(buffer, range(4)), targets)
    assert (contents(buffer).reshape(COUNT, PIECE)[:4, 7] == np.arange(4)).all()


def test_arrays_of_any_strides_are_copied_in_one_batch():
    rng = np.random.default_rng(2)
    models = [rng.integers(0, 1000, shape, dtype=np.int32) for shape in ((6, 8), (4, 5, 6), (9,), (3, 4))]
    sources = [accelrt.asarray(model) for model in models]
    views = [source.T if source.ndim > 1 else source[::-1] for source in sources]
    targets = [accelrt.zeros(view.shape, "i4") for view in views]
    wide = accelrt.zeros((4, 10), "i4")
    accelrt.copy_many([*targets, wide[:, 2:6]], [*views, accelrt.full((4, 4), 3, "i4")])
    for model, target in zip(models, targets, strict=True):
        assert (target.numpy() == (model.T if model.ndim > 1 else model[::-1])).all()
    assert wide.numpy().sum() == 48
    assert (wide.numpy()[:, 2:6] == 3).all()


def test_one_source_may_be_read_by_many():
    targets = [accelrt.zeros((4, 6), "f4") for _ in range(5)]
    row = accelrt.asarray(np.arange(6, dtype=np.float32))
    accelrt.copy_many(targets, [row] * 5)
    assert all((target.numpy() == np.arange(6)).all() for target in targets)


def test_a_graph_captures_a_batch_and_reads_anew_and_keeps_its_memory():
    buffer, pinned = filled()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        accelrt.copy_many(
            places(buffer, range(COUNT)), places(pinned, range(COUNT)), PIECE, memory=[buffer, pinned]
        )
    view = np.frombuffer(pinned, np.uint8)
    for value in (5, 6):
        view[:] = value
        graph.replay()
        assert (contents(buffer) == value).all()
    del view
    held = accelrt.memory_allocated()
    kept = accelrt.Array(buffer)
    del buffer, pinned
    gc.collect()
    assert accelrt.memory_allocated() == held
    others = accelrt.PinnedBuffer(COUNT * PIECE)
    graph.replay()
    assert (kept.numpy() == 6).all()
    del graph, others


def test_a_graph_keeps_the_objects_of_a_batch():
    source, target = accelrt.full((6, 8), 3, "i4"), accelrt.zeros((8, 6), "i4")
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        accelrt.copy_many([target], [source.T])
    held = accelrt.memory_allocated()
    del source
    gc.collect()
    assert accelrt.memory_allocated() == held
    graph.replay()
    assert (target.numpy() == 3).all()


def test_memory_that_is_freed_behind_a_batch_is_not_reused_before_it_is_done():
    stream = accelrt.Stream()
    gate = Gate(stream)
    buffer, pinned = filled()
    source = accelrt.Buffer(COUNT * PIECE)
    source.fill(9)
    stream.wait_stream(accelrt.current_stream())
    accelrt.copy_many(places(buffer, range(COUNT)), places(source, range(COUNT)), PIECE, stream=stream)
    accelrt.copy_many(places(pinned, range(COUNT)), places(buffer, range(COUNT)), PIECE, stream=stream)
    address = source.ptr
    source.free()
    again = accelrt.Buffer(COUNT * PIECE)
    assert again.ptr != address
    again.fill(1)
    accelrt.current_stream().synchronize()
    gate.open.set()
    stream.synchronize()
    assert (np.frombuffer(pinned, np.uint8) == 9).all()


def test_page_locked_memory_that_is_dropped_behind_a_batch_is_not_reused_before_it_is_done():
    stream = accelrt.Stream()
    gate = Gate(stream)
    buffer, pinned = filled()
    address = pinned.ptr
    accelrt.copy_many(places(buffer, range(COUNT)), places(pinned, range(COUNT)), PIECE, stream=stream)
    del pinned
    gc.collect()
    again = accelrt.PinnedBuffer(COUNT * PIECE)
    assert again.ptr != address
    gate.open.set()
    stream.synchronize()
    assert (contents(buffer).reshape(COUNT, PIECE)[:, 0] == np.arange(COUNT)).all()


def test_a_blocking_batch_is_complete():
    buffer, pinned = filled()
    back = accelrt.PinnedBuffer(COUNT * PIECE)
    stream = accelrt.Stream()
    accelrt.copy_many([buffer], [pinned], stream=stream)
    accelrt.copy_many([back], [buffer], stream=stream, blocking=True)
    assert (np.frombuffer(back, np.uint8) == np.frombuffer(pinned, np.uint8)).all()


def test_hints_are_taken():
    buffer, pinned = filled()
    for where in ("cpu", 0, ("numa", 0), None):
        accelrt.copy_many([buffer], [pinned], dst_location=where, src_location=where, overlap=True)
    accelrt.synchronize()
    assert (contents(buffer) == np.frombuffer(pinned, np.uint8)).all()


# --- when sources are read ------------------------------------------------------------------------


def copied_at_once(targets, sources, stream, **arguments):
    try:
        accelrt.copy_many(targets, sources, stream=stream, src_access_order="during_api_call", **arguments)
    except accelrt.NotSupportedError:
        pytest.skip("the driver reads sources in the stream's order alone")


def test_sources_that_are_read_during_the_call_may_be_changed_and_freed_after_it():
    stream = accelrt.Stream()
    pinned, page = accelrt.pinned_empty(1000, "u1"), accelrt.PinnedBuffer(PIECE)
    ordinary = np.arange(1000, dtype=np.int32)
    pinned[:], np.frombuffer(page, np.uint8)[:] = 5, 6
    targets = [accelrt.Buffer(1000), accelrt.Buffer(4000), accelrt.Buffer(PIECE)]
    accelrt.synchronize()
    with Gate(stream) as gate:
        copied_at_once(targets, [pinned, ordinary, page], stream)
        pinned[:], ordinary[:] = 0, 0
        address = page.ptr
        page.free()
        again = accelrt.PinnedBuffer(PIECE)  # at once, for no stream uses it any more
        assert again.ptr == address
        np.frombuffer(again, np.uint8)[:] = 0
        gate.open.set()
    stream.synchronize()
    assert (contents(targets[0]) == 5).all()
    assert (contents(targets[1], np.int32) == np.arange(1000)).all()
    assert (contents(targets[2]) == 6).all()


def test_elements_that_lie_apart_are_read_during_the_call_too():
    stream, target = accelrt.Stream(), accelrt.zeros((8, 8), "i4")
    source = accelrt.pinned_empty((8, 16), "i4")
    apart = accelrt.asarray(source, device="cpu")[:, ::2]
    source[:] = np.arange(128).reshape(8, 16)
    accelrt.synchronize()
    with Gate(stream) as gate:
        copied_at_once([target], [apart], stream)
        source[:] = 0
        gate.open.set()
    stream.synchronize()
    assert (target.numpy() == np.arange(128).reshape(8, 16)[:, ::2]).all()


def test_addresses_of_ordinary_memory_that_is_named_are_read_during_the_call():
    stream, buffer = accelrt.Stream(), accelrt.Buffer(COUNT * PIECE)
    ordinary = np.repeat(np.arange(COUNT, dtype=np.uint8), PIECE)
    base = np.uint64(ordinary.ctypes.data)
    sources = base + np.arange(COUNT, dtype=np.uint64)[::-1] * np.uint64(PIECE)
    accelrt.synchronize()
    copied_at_once(places(buffer, range(COUNT)), sources, stream, sizes=PIECE, memory=[buffer, ordinary])
    stream.synchronize()
    assert (contents(buffer).reshape(COUNT, PIECE)[:, 0] == np.arange(COUNT)[::-1]).all()
    with pytest.raises(ValueError, match="pass the end of its memory"):
        accelrt.copy_many(
            places(buffer, [0]), sources[:1] + np.uint64(1), PIECE, memory=[ordinary], stream=stream,
            src_access_order="during_api_call",
        )  # fmt: skip


def test_sources_that_may_be_read_at_any_time_are_copied_and_kept_until_then():
    stream = accelrt.Stream()
    buffer, pinned = filled()
    address = pinned.ptr
    accelrt.synchronize()
    with Gate(stream) as gate:
        accelrt.copy_many([buffer], [pinned], stream=stream, src_access_order="any")
        del pinned
        gc.collect()
        assert accelrt.PinnedBuffer(COUNT * PIECE).ptr != address
        gate.open.set()
    stream.synchronize()
    assert (contents(buffer).reshape(COUNT, PIECE)[:, 0] == np.arange(COUNT)).all()


@in_own_process(ACCELRT_SANITIZE="raise")
def test_the_race_detector_hears_when_sources_are_read():
    first, second = accelrt.Stream(), accelrt.Stream()
    source, target = accelrt.PinnedBuffer(4096), accelrt.Buffer(4096)
    for stream in (first, second):
        stream.wait_stream(accelrt.current_stream())
    for order in ("during_api_call", "any"):
        accelrt.copy_many([target], [source], stream=first, src_access_order=order)
        if order == "any":
            with pytest.raises(accelrt.RaceError):
                accelrt.fill(source, 1, stream=second)
            first.synchronize()
        accelrt.fill(source, 1, stream=first)  # which the copy's stream orders, and its read does not
        with pytest.raises(accelrt.RaceError, match="copy_many"):
            accelrt.copy_many([target], [source], stream=first, src_access_order=order)
        first.synchronize()
        accelrt.copy_many([target], [source], stream=first, src_access_order=order)
        first.synchronize()
    accelrt.copy_many([target], [source], stream=first, src_access_order="during_api_call")
    accelrt.fill(source, 1, stream=second)  # it was read
    accelrt.synchronize()


def test_an_order_of_sources_that_cannot_be_is_refused_with_why():
    buffer, pinned = filled()
    with pytest.raises(
        ValueError, match="src_access_order is 'now'; pass 'stream', 'during_api_call' or 'any'"
    ):
        accelrt.copy_many([buffer], [pinned], src_access_order="now")
    for order in ("stream", "any"):
        with pytest.raises(ValueError, match="or for sources src_access_order='during_api_call'"):
            accelrt.copy_many([buffer], [np.zeros(4, np.uint8)], src_access_order=order)
    with pytest.raises(ValueError, match=r"dsts\[0\] is host memory that is not page-locked"):
        accelrt.copy_many([np.zeros(4, np.uint8)], [buffer], 4, src_access_order="during_api_call")
    apart = accelrt.asarray(np.zeros((4, 4), np.uint8), device="cpu")[:, ::2]
    with pytest.raises(ValueError, match="whose elements lie apart; pass a contiguous copy"):
        accelrt.copy_many([accelrt.zeros((4, 2), "u1")], [apart], src_access_order="during_api_call")
    with pytest.raises(accelrt.NotSupportedError, match="pass another stream, or blocking=True without it"):
        accelrt.copy_many([buffer], [pinned], stream=0, src_access_order="during_api_call")
    stream = accelrt.Stream()
    with (
        accelrt.graph(accelrt.CUDAGraph(), stream=stream),
        pytest.raises(accelrt.NotSupportedError, match="a stream that is not captured"),
    ):
        accelrt.copy_many([buffer], [pinned], src_access_order="during_api_call")


# --- options of each copy ------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_each_copy_may_have_options_of_its_own(data):
    buffer, pinned = filled()
    buffer.fill(255)
    chosen = data.draw(st.lists(st.integers(0, COUNT - 1), unique=True))
    count = len(chosen)
    sizes = [data.draw(st.sampled_from([0, 1, PIECE])) for _ in chosen]
    locations = st.sampled_from([None, "cpu", 0, ("numa", 0)])
    options = {
        "dst_location": locations,
        "src_location": locations,
        "overlap": st.booleans(),
        "src_access_order": st.sampled_from(["stream", "any"]),
    }
    given_options = {
        name: data.draw(st.one_of(values, st.lists(values, min_size=count, max_size=count)))
        for name, values in options.items()
    }
    accelrt.copy_many(
        places(buffer, chosen), places(pinned, chosen), np.array(sizes, np.int64), memory=[buffer, pinned],
        **given_options,
    )  # fmt: skip
    expected = np.full((COUNT, PIECE), 255, np.uint8)
    for place, size in zip(chosen, sizes, strict=True):
        expected[place, :size] = place
    assert (contents(buffer) == expected.ravel()).all()


def test_some_sources_are_read_during_the_call_and_others_in_the_streams_order():
    stream = accelrt.Stream()
    late, early = accelrt.pinned_empty(100, "u1"), accelrt.pinned_empty((8, 16), "i4")
    ordinary = np.arange(100, dtype=np.uint8)
    late[:], early[:] = 1, np.arange(128).reshape(8, 16)
    apart = accelrt.asarray(early, device="cpu")[:, ::2]
    targets = [
        accelrt.Buffer(100),
        accelrt.zeros((8, 8), "i4"),
        accelrt.Buffer(100),
        accelrt.zeros((8, 8), "i4"),
    ]
    kept = accelrt.pinned_empty((8, 16), "i4")
    kept[:] = 5
    orders = ["stream", "during_api_call", "during_api_call", "stream"]
    sources = [late, apart, ordinary, accelrt.asarray(kept, device="cpu")[:, ::2]]
    accelrt.synchronize()
    with Gate(stream) as gate:
        try:
            accelrt.copy_many(targets, sources, stream=stream, src_access_order=orders)
        except accelrt.NotSupportedError:
            gate.open.set()
            pytest.skip("the driver reads sources in the stream's order alone")
        late[:], early[:], ordinary[:], kept[:] = 2, 0, 0, 6
        gate.open.set()
    stream.synchronize()
    assert (contents(targets[0]) == 2).all()
    assert (targets[1].numpy() == np.arange(128).reshape(8, 16)[:, ::2]).all()
    assert (contents(targets[2]) == np.arange(100)).all()
    assert (targets[3].numpy() == 6).all()


def test_memory_whose_source_is_read_later_stays_until_then():
    stream = accelrt.Stream()
    now, later = accelrt.PinnedBuffer(PIECE), accelrt.PinnedBuffer(PIECE)
    targets = [accelrt.Buffer(PIECE), accelrt.Buffer(PIECE)]
    addresses = now.ptr, later.ptr
    accelrt.synchronize()
    with Gate(stream) as gate:
        try:
            accelrt.copy_many(
                targets, [now, later], stream=stream, src_access_order=["during_api_call", "stream"]
            )
        except accelrt.NotSupportedError:
            gate.open.set()
            pytest.skip("the driver reads sources in the stream's order alone")
        now.free()
        later.free()
        again = [accelrt.PinnedBuffer(PIECE) for _ in range(3)]
        assert addresses[0] in [each.ptr for each in again]
        assert addresses[1] not in [each.ptr for each in again]
        gate.open.set()
    stream.synchronize()


@in_own_process(ACCELRT_SANITIZE="raise")
def test_the_race_detector_hears_of_each_copy_when_its_source_is_read():
    first, second = accelrt.Stream(), accelrt.Stream()
    now, later, targets = (
        accelrt.PinnedBuffer(64),
        accelrt.PinnedBuffer(64),
        [accelrt.Buffer(64), accelrt.Buffer(64)],
    )
    for stream in (first, second):
        stream.wait_stream(accelrt.current_stream())
    accelrt.copy_many(targets, [now, later], stream=first, src_access_order=["during_api_call", "stream"])
    accelrt.fill(now, 1, stream=second)  # it was read
    with pytest.raises(accelrt.RaceError):
        accelrt.fill(later, 1, stream=second)
    accelrt.synchronize()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"overlap": [True]}, ValueError, "there are options of 1 copies and 2 copies; pass one for each"),
        (
            {"overlap": [True] * 2, "src_location": [0] * 3},
            ValueError,
            "src_location has 3 options and overlap 2",
        ),
        ({"src_location": ["cpu", "disk"]}, ValueError, "disk"),
        ({"dst_location": [None, ("numa", -1)]}, ValueError, r"the node of dst_location\[1\] is -1"),
        ({"src_access_order": ["stream", 1]}, ValueError, r"src_access_order\[1\] is 1; pass 'stream', "),
        (
            {"src_access_order": ["any", "during_api_call"]},
            ValueError,
            r"srcs\[0\] is host memory that is not page-l",
        ),
    ],
)
def test_options_that_do_not_fit_the_copies_are_refused(options, error, words):
    targets, sources = [accelrt.Buffer(4), accelrt.Buffer(4)], [np.zeros(4, np.uint8), np.zeros(4, np.uint8)]
    with pytest.raises(error, match=words):
        accelrt.copy_many(targets, sources, **options)


def test_named_ordinary_memory_needs_all_sources_to_be_read_during_the_call():
    buffer, ordinary = accelrt.Buffer(8), np.zeros(8, np.uint8)
    sources = [ordinary.ctypes.data, ordinary.ctypes.data + 4]
    with pytest.raises(ValueError, match=r"memory\[0\] is host memory that is not page-locked"):
        accelrt.copy_many(
            [buffer.ptr, buffer.ptr + 4], sources, 4, memory=[ordinary],
            src_access_order=["during_api_call", "stream"],
        )  # fmt: skip


def test_nothing_is_copied_by_an_empty_batch():
    accelrt.copy_many([], [], overlap=[], src_location=[])
    accelrt.copy_many([], [])
    accelrt.copy_many(np.empty(0, np.uint64), np.empty(0, np.uint64), 16)
    accelrt.copy_many([accelrt.Buffer(0)], [accelrt.Buffer(0)])


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (lambda b, p: ([b], [p, p]), ValueError, "1 dsts and 2 srcs"),
        (lambda b, p: (b, p), TypeError, "dsts is of type Buffer; pass a sequence"),
        (lambda b, p: ([b.ptr], [p.ptr]), TypeError, "sizes is None"),
        (lambda b, p: ([b], [p], [1, 2]), ValueError, "2 sizes and 1 copies"),
        (lambda b, p: ([b], [p], p.nbytes + 1), ValueError, "its memory has"),
        (lambda b, p: ([b], [p], "many"), TypeError, "sizes is of type str"),
        (lambda b, p: ([b.ptr + b.nbytes - 1], [p.ptr], 1 << 30), ValueError, "pass the end of its memory"),
        (lambda b, p: (np.array([1.5]), [p], 1), TypeError, "8-byte ints"),
        (lambda b, p: ([b], [np.zeros(8, np.uint8)], 8), ValueError, "not page-locked.*pinned_empty"),
        (lambda b, p: ([b.ptr], [np.zeros(8, np.uint8).ctypes.data], 8), ValueError, "not page-locked"),
        (lambda b, p: ([b], [accelrt.Buffer(8, device=1)], 8), ValueError, "a batch has one device"),
        (lambda b, p: ([accelrt.zeros((4, 4)).T], [p], 4), ValueError, "elements that lie apart"),
        (lambda b, p: ([b], [object()], 8), TypeError, "cannot be used"),
    ],
)  # fmt: skip
def test_what_cannot_be_copied_is_refused_with_why(arguments, error, words):
    if "one device" in words and accelrt.device_count() < 2:
        pytest.skip("takes two devices")
    buffer, pinned = filled()
    with pytest.raises(error, match=words):
        accelrt.copy_many(*arguments(buffer, pinned))


def test_freed_memory_is_refused_by_object_and_by_address():
    buffer, pinned = filled()
    keep = accelrt.Buffer(1 << 20)
    target = accelrt.Buffer(1 << 20)
    address = target.ptr
    target.free()
    with pytest.raises(ValueError, match="freed"):
        accelrt.copy_many([target], [pinned], 8)
    with pytest.raises(ValueError, match=r"dsts\[1\] is 0x.*not allocated"):
        accelrt.copy_many([buffer.ptr, address], [pinned.ptr, pinned.ptr], 8)
    del keep


def test_an_array_that_shares_bytes_with_itself_is_refused():
    array = accelrt.zeros((8, 8), "i4")
    with pytest.raises(ValueError, match="share bytes"):
        accelrt.copy_many([array], [array.T])


def test_memory_that_sleeps_is_refused():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(4096)
    pinned = accelrt.PinnedBuffer(4096)
    try:
        pool.sleep()
    except accelrt.errors.NotSupportedError:
        pytest.skip("takes virtual memory")
    for dsts in ([buffer], [buffer.ptr]):
        with pytest.raises(accelrt.errors.SleepingMemoryError):
            accelrt.copy_many(dsts, [pinned], 16)
    with pytest.raises(accelrt.errors.SleepingMemoryError):
        accelrt.copy_many([buffer.ptr], [pinned.ptr], 16, memory=[buffer, pinned])
    pool.wake()
    accelrt.copy_many([buffer.ptr], [pinned.ptr], 16)


def test_addresses_are_read_before_the_call_returns():
    buffer, pinned = filled()
    stream = accelrt.Stream()
    gate = Gate(stream)
    dsts, srcs = places(buffer, range(COUNT)), places(pinned, range(COUNT))
    accelrt.copy_many(dsts, srcs, PIECE, stream=stream, memory=[buffer, pinned])
    dsts[:] = 0
    srcs[:] = 0
    gate.open.set()
    stream.synchronize()
    assert (contents(buffer).reshape(COUNT, PIECE)[:, 0] == np.arange(COUNT)).all()


def test_batches_of_several_threads_are_each_whole():
    buffer, pinned = filled()

    def work(place):
        stream = accelrt.Stream()
        mine = np.arange(place, COUNT, 4)
        for _ in range(20):
            accelrt.copy_many(places(buffer, mine), places(pinned, mine), PIECE, stream=stream)
        stream.synchronize()

    on_threads(work, range(4))
    assert (contents(buffer).reshape(COUNT, PIECE)[:, 0] == np.arange(COUNT)).all()


@in_own_process(ACCELRT_SANITIZE="raise")
def test_the_race_detector_hears_of_each_copy():
    first, second = accelrt.Stream(), accelrt.Stream()
    buffer = accelrt.Buffer(4096)
    one, other = accelrt.PinnedBuffer(1024), accelrt.PinnedBuffer(1024)
    array, source = accelrt.zeros((8, 8), "i4"), accelrt.zeros((4, 2), "i4")
    for stream in (first, second):
        stream.wait_stream(accelrt.current_stream())
    accelrt.copy_many([buffer.ptr, buffer.ptr + 1024], [one.ptr, one.ptr], 1024, stream=first)
    accelrt.copy_many([buffer.ptr + 2048], [other.ptr], 1024, stream=second)
    with pytest.raises(accelrt.RaceError, match="copy_many"):
        accelrt.copy_many([buffer.ptr + 1024], [other.ptr], 16, stream=second)
    accelrt.copy_many([array[:4, 1:3]], [source], stream=first)
    with pytest.raises(accelrt.RaceError):
        accelrt.fill(array, 1, stream=second)
    accelrt.synchronize()


class Lengthening:
    """An int whose reading makes the list longer that it is in."""

    def __init__(self, value, numbers):
        self.value, self.numbers = value, numbers

    def __index__(self):
        self.numbers.extend([self.value] * 100_000)
        return self.value


def test_a_list_that_grows_while_it_is_read_is_taken_as_it_was():
    buffer, pinned = filled(2)
    for _ in range(20):
        dsts = [buffer.ptr, 0]
        dsts[1] = Lengthening(buffer.ptr + PIECE, dsts)
        accelrt.copy_many(dsts, [pinned.ptr, pinned.ptr + PIECE], PIECE)
    assert contents(buffer)[::PIECE].tolist() == [0, 1]


def test_addresses_in_another_order_of_bytes_are_refused():
    _buffer, pinned = filled(2)
    for kind in (">u8", "f8", "u4"):
        with pytest.raises(TypeError, match="8-byte ints"):
            accelrt.copy_many(np.array([5], kind), [pinned.ptr], PIECE)


def test_addresses_with_gaps_between_are_refused_by_name():
    addresses = np.zeros(4, np.uint64)[::2]
    for name, other in (("dsts", "srcs"), ("srcs", "dsts")):
        with pytest.raises(ValueError, match=f"{name} is an array that cannot be read .*contiguous one"):
            accelrt.copy_many(**{name: addresses, other: [0, 0]}, sizes=1)


def test_sizes_are_bytes_and_owners_a_sequence():
    buffer, pinned = filled(2)
    accelrt.copy_many([buffer], [pinned], np.int64(PIECE))
    assert contents(buffer)[0] == 0
    for wrong in (1.5, True, object(), "4"):
        with pytest.raises(TypeError, match=r"sizes is .*pass"):
            accelrt.copy_many([buffer], [pinned], wrong)
    with pytest.raises(ValueError, match="sizes is -1; it goes from 0"):
        accelrt.copy_many([buffer], [pinned], -1)
    for owner in (buffer, 5, None):
        with pytest.raises(TypeError, match="pass a sequence of what owns the memory"):
            accelrt.copy_many([buffer.ptr], [pinned.ptr], PIECE, memory=owner)


@in_own_process(ACCELRT_DRIVER="host", ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_page_locked_memory_where_the_devices_was_is_told_of_its_copies():
    stream = accelrt.Stream()
    buffer = accelrt.Buffer(COUNT * PIECE)
    former = accelrt.Buffer(64 << 20)
    low, high = former.ptr, former.ptr + former.nbytes
    former.free()
    accelrt.empty_cache()
    kept = []
    while not kept or not low <= kept[-1].ptr < high:
        assert len(kept) < 4096, "no page-locked memory came to lie there"
        kept.append(accelrt.PinnedBuffer(COUNT * PIECE))
    gate, address = Gate(stream), kept[-1].ptr
    accelrt.copy_many(places(buffer, range(COUNT)), places(kept[-1], range(COUNT)), PIECE, stream=stream)
    del kept[-1]
    assert accelrt.PinnedBuffer(COUNT * PIECE).ptr != address
    gate.open.set()
    stream.synchronize()


def test_memory_of_a_page_locked_pool_is_told_of_its_copies():
    stream, pool = accelrt.Stream(), accelrt.PinnedMemPool()
    buffer, pinned = accelrt.Buffer(COUNT * PIECE), accelrt.PinnedBuffer(COUNT * PIECE, pool=pool)
    stream.wait_stream(accelrt.current_stream())
    with Gate(stream):
        address = pinned.ptr
        accelrt.copy_many(places(buffer, range(COUNT)), places(pinned, range(COUNT)), PIECE, stream=stream)
        del pinned
        assert accelrt.PinnedBuffer(COUNT * PIECE, pool=pool).ptr != address
    stream.synchronize()
