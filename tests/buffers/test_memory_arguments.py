"""What copies, fills and the allocator's calls make of memory that is gone, and of numbers of every kind."""

import ctypes

import numpy as np
import pytest
from child import in_own_process

import accelrt
from accelrt import memory

OBJECTS = {
    "objects": lambda: np.array([None] * 8),
    "struct": lambda: np.zeros(4, [("a", "i4"), ("b", "O")]),
    "nested": lambda: np.zeros(4, [("a", [("b", "O")])]),
    "ctypes": lambda: (ctypes.py_object * 8)(),
    "view": lambda: memoryview(np.array([None] * 8)),
    "view of structs": lambda: memoryview(np.zeros(4, [("a", "i4"), ("b", "O")])),
    "beside a date": lambda: np.zeros(4, [("a", "M8[ns]"), ("b", "O")]),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_python_objects_are_copied_in_no_direction(kind):
    array = OBJECTS[kind]()
    with accelrt.Buffer(256) as buffer:
        buffer.fill(0x41, blocking=True)
        with pytest.raises(TypeError, match=r"src of type .* holds Python objects"):
            buffer.copy_from(array)
        with pytest.raises(TypeError, match=r"dst of type .* holds Python objects"):
            buffer.copy_to(array)


@pytest.mark.parametrize("kind", ["M8[ns]", "c16", "U4", "S16", [("a", "i4"), ("O", "i8")], "V24", "f8"])
def test_plain_values_of_every_kind_are_copied(kind):
    array = np.zeros(8, kind)
    with accelrt.Buffer(array.nbytes) as buffer:
        buffer.fill(0, blocking=True)
        buffer.copy_from(array)
        buffer.copy_to(array)
        if array.dtype.kind != "M":
            buffer.copy_from(memoryview(array))


def freed(kind, **arguments):
    thing = kind(64, **arguments)
    thing.free()
    return thing


def test_a_freed_buffer_says_so():
    buffer, other, array = freed(accelrt.Buffer), accelrt.Buffer(64), np.full(64, 9, np.uint8)
    for call in (
        lambda: buffer.copy_to(array),
        lambda: buffer.copy_from(array),
        lambda: buffer.fill(1),
        lambda: buffer.fill(1, offset=8),
        lambda: buffer.copy_from(array, offset=8),
        lambda: accelrt.copy(other, buffer),
        lambda: accelrt.copy(buffer, other),
        lambda: accelrt.fill(buffer),
        lambda: buffer.record_stream(accelrt.Stream()),
        lambda: buffer.copy_to(array, 0),
        lambda: buffer.copy_to(accelrt.Buffer(0)),
    ):
        with pytest.raises(ValueError, match="Buffer that was freed"):
            call()
    assert (array == 9).all()
    assert (buffer.ptr, buffer.nbytes, len(buffer)) == (0, 0, 0)
    if accelrt.device(0).type == "cuda":
        with pytest.raises(ValueError, match="Buffer that was freed"):
            buffer.__cuda_array_interface__  # noqa: B018
    buffer.free()
    with accelrt.Buffer(64) as closed:
        pass
    with pytest.raises(ValueError, match="Buffer that was freed"):
        closed.copy_to(array)
    other.free()


def test_a_freed_pinned_buffer_says_so():
    pinned, buffer = freed(accelrt.PinnedBuffer), accelrt.Buffer(64)
    for call in (
        lambda: buffer.copy_from(pinned),
        lambda: buffer.copy_to(pinned),
        lambda: accelrt.record_host_stream(pinned, accelrt.Stream()),
    ):
        with pytest.raises(ValueError, match="PinnedBuffer that was freed"):
            call()
    with pytest.raises(BufferError, match="was freed"):
        memoryview(pinned)
    buffer.free()


def test_buffers_of_no_bytes_are_no_freed_ones():
    with accelrt.Buffer(0) as empty, accelrt.Buffer(64) as buffer, accelrt.PinnedBuffer(0) as pinned:
        empty.fill(1)
        empty.record_stream(accelrt.Stream())
        empty.copy_to(np.zeros(0, np.uint8))
        empty.copy_from(b"")
        buffer.copy_from(empty)
        accelrt.copy(empty, pinned)
        assert memoryview(pinned).nbytes == 0


# --- numbers ---

OUT_OF_RANGE = [-1, -(1 << 31) - 1, 1 << 63, 1 << 64, 1 << 200, -(1 << 200)]


class Evil(int):
    """An int that answers each comparison as a caller would like it."""

    def __lt__(self, other):
        return True

    __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __lt__

    def __hash__(self):
        return 0


def begin_in_pool(n):
    with accelrt.stream(accelrt.Stream()):
        accelrt.CUDAGraph().capture_begin(pool=(0, -1 if int(n) == 1 << 63 else n))


def calls():
    buffer, array, pinned, event = (
        accelrt.Buffer(64),
        np.zeros(64, np.uint8),
        accelrt.PinnedBuffer(64),
        accelrt.Event(),
    )
    event.record()
    return {
        "Buffer": lambda n: accelrt.Buffer(n),
        "Buffer's device": lambda n: accelrt.Buffer(64, n),
        "Buffer's stream": lambda n: accelrt.Buffer(64, stream=n),
        "PinnedBuffer": lambda n: accelrt.PinnedBuffer(n),
        "PinnedBuffer's device": lambda n: accelrt.PinnedBuffer(64, n),
        "copy": lambda n: buffer.copy_from(array, n),
        "copy's offset": lambda n: buffer.copy_from(array, 1, offset=n),
        "copy's src_offset": lambda n: buffer.copy_from(array, 1, src_offset=n),
        "copy's dst_offset": lambda n: buffer.copy_to(array, 1, dst_offset=n),
        "copy's stream": lambda n: buffer.copy_from(array, stream=n),
        "fill": lambda n: buffer.fill(n),
        "fill's count": lambda n: buffer.fill(1, n),
        "fill's width": lambda n: buffer.fill(1, width=n),
        "fill's offset": lambda n: buffer.fill(1, offset=n),
        "fill's stream": lambda n: buffer.fill(1, stream=n),
        "Buffer.record_stream": buffer.record_stream,
        "ExternalStream": accelrt.ExternalStream,
        "Stream's device": lambda n: accelrt.Stream(n),
        "alloc": accelrt.caching_allocator_alloc,
        "alloc's device": lambda n: accelrt.caching_allocator_alloc(64, n),
        "alloc's stream": lambda n: accelrt.caching_allocator_alloc(64, stream=n),
        "delete": accelrt.caching_allocator_delete,
        "record_stream": lambda n: memory.record_stream(n, accelrt.Stream()),
        "record_stream's stream": lambda n: memory.record_stream(buffer.ptr, n),
        "free_after": lambda n: memory.free_after(n, event),
        "host alloc": accelrt.caching_host_allocator_alloc,
        "host delete": accelrt.caching_host_allocator_delete,
        "record_host_stream": lambda n: accelrt.record_host_stream(n, accelrt.Stream()),
        "record_host_stream's stream": lambda n: accelrt.record_host_stream(pinned, n),
        "pinned_empty": lambda n: accelrt.pinned_empty(n, np.uint8),
        "pinned_empty's shape": lambda n: accelrt.pinned_empty((1, n), np.uint8),
        "fraction": memory.set_per_process_memory_fraction,
        "fraction's device": lambda n: memory.set_per_process_memory_fraction(1.0, n),
        "register threads": lambda n: accelrt.configure_pinned(pinned_num_register_threads=n),
        "cached size": lambda n: accelrt.configure_pinned(pinned_max_cached_size_mb=n),
        "pool's limit": lambda n: accelrt.MemPool(
            limit=min(int(n), -int(n))
        ),  # one above any device's is a limit too
        "pool's id": begin_in_pool,
        "memory_stats": accelrt.memory_stats,
        "sync debug mode": accelrt.set_sync_debug_mode,
        "peer": lambda n: accelrt.can_device_access_peer(0, n),
    }


NAMES = list(calls())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [int, np.int64, Evil])
def test_a_number_out_of_range_is_refused_with_a_text(name, kind):
    # A GPU's driver may crash on a handle that was never one.
    asks = accelrt.device(0).type != "host" and "tream" in name
    values = [-1, 1 << 64] if asks else OUT_OF_RANGE
    for value in values:
        if kind is np.int64 and not -(1 << 63) <= value < 1 << 63:
            continue
        with pytest.raises((ValueError, TypeError, accelrt.OutOfMemoryError)) as caught:
            calls()[name](kind(value))
        assert str(caught.value)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_numpys_ints_are_ints(kind):
    stream, array = accelrt.Stream(), np.arange(64, dtype=np.uint8)
    out = np.zeros(64, np.uint8)
    with accelrt.Buffer(kind(64), kind(0)) as buffer:
        buffer.fill(kind(3), kind(60), width=kind(1), offset=kind(4), blocking=True)
        buffer.copy_from(array, kind(4), offset=kind(0), src_offset=kind(8))
        buffer.copy_to(out, kind(64), dst_offset=kind(0))
        assert out.tolist() == [8, 9, 10, 11] + [3] * 60
        buffer.fill(1, stream=np.uint64(stream.cuda_stream))
        memory.record_stream(np.uint64(buffer.ptr), np.uint64(stream.cuda_stream))
    pointer = accelrt.caching_allocator_alloc(kind(64), stream=np.uint64(stream.cuda_stream))
    accelrt.caching_allocator_delete(np.uint64(pointer))
    host = accelrt.caching_host_allocator_alloc(kind(64))
    accelrt.record_host_stream(np.uint64(host), stream)
    accelrt.caching_host_allocator_delete(np.uint64(host))
    assert accelrt.Stream(priority=kind(0)).priority == 0
    accelrt.configure_pinned(pinned_num_register_threads=kind(1))


@pytest.mark.parametrize(
    "fraction", [np.float32(0.5), np.float64(0.5), 1, np.int64(1), np.float16(1)], ids=repr
)
def test_numpys_floats_are_fractions(fraction):
    memory.set_per_process_memory_fraction(fraction)
    memory.set_per_process_memory_fraction(1.0)


@in_own_process(ACCELRT_HOST_MEMORY="85016772608")
def test_a_fraction_made_of_bytes_allows_all_of_them():
    total, nbytes = accelrt.mem_get_info()[1], 32 << 20
    assert int(nbytes / total * total) == nbytes - 1
    memory.set_per_process_memory_fraction(nbytes / total)
    assert round(memory.get_per_process_memory_fraction() * total) == nbytes


@pytest.mark.parametrize("fraction", ["0.5", True, None, 1j, np.True_], ids=repr)
def test_what_is_no_number_is_no_fraction(fraction):
    with pytest.raises(TypeError, match="pass a float"):
        memory.set_per_process_memory_fraction(fraction)


def test_bools_stay_refused():
    with accelrt.Buffer(64) as buffer:
        for call in (
            lambda: accelrt.Buffer(True),
            lambda: buffer.copy_from(b"x", True),
            lambda: buffer.fill(1, stream=True),
            lambda: accelrt.ExternalStream(False),
            lambda: buffer.copy_from(b"x", offset=np.True_),
        ):
            with pytest.raises(TypeError):
                call()


@pytest.mark.parametrize("place", ["library", "alloc", "free"])
def test_a_null_character_ends_no_name(place, tmp_path):
    names = {"library": str(tmp_path / "a.so"), "alloc": "good_alloc", "free": "good_free"}
    names[place] += "\0x"
    library = names["library"] if place == "library" else "libc.so.6"
    if place == "free":
        names["alloc"] = "malloc"
    with pytest.raises(ValueError, match="embedded null"):
        memory.CUDAPluggableAllocator(library, names["alloc"], names["free"])
