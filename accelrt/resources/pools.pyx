"""Pools on any resource: chunks and blocks, blocks of one size, and resources by size."""
from _thread import allocate_lock, get_ident
from bisect import bisect_left, insort
from libc.stdint cimport INT64_MAX, int64_t

from accelrt.core.integers cimport checked_int
from accelrt.core.locks cimport begin_turn, end_turn
from accelrt.driver.guard cimport GONE, meaning_of
from accelrt.errors import ArgumentError, CudaError
from accelrt.resources.resource import DeviceResource
from accelrt.resources.resource cimport (
    MOST_TRIES, Adaptor, Resource, end_put_off, is_back, is_refused, put_off_end, refuse, take_from, tell_unraisable,
    this_thread,
)
from accelrt.runtime.lifetimes cimport any_capture
from accelrt.status cimport refuse_copy
from accelrt.streams.stream cimport LEGACY, PER_THREAD, Stream, stream_for
from accelrt.streams.stream import default_stream

cdef object LARGEST = INT64_MAX  # bytes


cdef class Chunk:
    """Memory that a pool took from upstream in one call."""
    cdef object address
    cdef object size
    cdef object live   # bytes that are allocated of it
    cdef Block first

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is a part of a PoolResource")


cdef class Block:
    """A run of a chunk: allocated, or free in one arena."""
    cdef object address
    cdef object size
    cdef Chunk chunk
    cdef Block before
    cdef Block behind
    cdef Arena arena   # None while it is allocated

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is a part of a PoolResource")


cdef class Arena:
    """The free blocks in the order of one stream; stream None is memory that no work uses."""
    cdef Stream stream
    cdef object event  # behind what was freed there, of a stream that may be gone by the time when that matters; or None
    cdef list free     # (size, address), ascending
    cdef dict blocks   # address -> Block

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is a part of a PoolResource")

    cdef int add(self, Block block) except -1:
        block.arena = self
        self.blocks[block.address] = block
        insort(self.free, (block.size, block.address))
        return 0

    cdef int remove(self, Block block) except -1:
        block.arena = None
        del self.blocks[block.address]
        del self.free[bisect_left(self.free, (block.size, block.address))]
        return 0

    cdef Block fit(self, object size):
        cdef Py_ssize_t index = bisect_left(self.free, (size, 0))
        return self.blocks[self.free[index][1]] if index < len(self.free) else None


cdef bint is_lasting(Stream stream):
    # Others destroy theirs, and a thread's default stream ends with it, which nobody may ask then.
    return stream.pooled != NULL or stream.handle == LEGACY


cdef Arena new_arena(Stream stream):
    cdef Arena arena = Arena()
    arena.stream, arena.free, arena.blocks = stream, [], {}
    return arena


cdef Block new_block(Chunk chunk, object address, object size):
    cdef Block block = Block()
    block.chunk, block.address, block.size = chunk, address, size
    return block


cdef Chunk new_chunk(object address, object size):
    cdef Chunk chunk = Chunk()
    chunk.address, chunk.size, chunk.live = address, size, 0
    chunk.first = new_block(chunk, address, size)
    return chunk


cdef int split(Block block, object size) except -1:
    # Cuts what is more than size off a block that is in no arena, into one that its caller places.
    cdef Block rest = new_block(block.chunk, block.address + size, block.size - size)
    rest.before, rest.behind = block, block.behind
    if rest.behind is not None:
        rest.behind.before = rest
    block.behind = rest
    block.size = size
    return 0


cdef int join(Block block) except -1:
    # With the next one, which is in no arena either.
    cdef Block gone = block.behind
    block.size += gone.size
    block.behind = gone.behind
    if block.behind is not None:
        block.behind.before = block
    gone.before = gone.behind = None
    return 0


cdef bint has_to_wait(list arenas):
    # Whether a chunk goes back behind other streams than one that lasts.
    return len(arenas) > 1 or len(arenas) == 1 and not is_lasting((<Arena>arenas[0]).stream)


cdef class PoolResource(Adaptor):
    """PoolResource(upstream=None, initial=0, maximum=None, *, unit=512)\n--\n\n\
    A pool on any resource: it takes chunks, cuts blocks from them and keeps what comes back.

        pool = accelrt.resources.PoolResource(accelrt.resources.ManagedResource(), maximum=1 << 30)

    Arguments:
        upstream: Resource; None is a DeviceResource of the current device.
        initial: int, bytes to take at once.  The current stream is waited for then.
        maximum: int, the most bytes to have from upstream; None is no limit.
        unit: int, bytes: sizes are rounded up to multiples of it.
    Raises:
        TypeError, ValueError: an argument is none of these; initial is more than maximum.
        MemoryError: upstream has no room for initial.
    Attributes:
        unit: int.

    Memory that comes back on a stream is that stream's at once, and another stream's where upstream or the maximum leave no
    other way: that one then waits for the former.  In captures nothing goes from a stream to another.  A request that
    upstream refuses gives it idle chunks back before it fails.  Where upstream is accelrt's own memory, this pool is not
    faster than that, which is a pool itself; it is for other memory, for bounds and for figures.
    """
    cdef readonly object unit
    cdef object growth      # the least bytes to take from upstream
    cdef object most        # bytes to have at most, or None
    cdef int64_t total      # bytes of all chunks, and of those that are being taken
    cdef int64_t live_bytes
    cdef int lock           # of total
    cdef dict chunks        # address -> Chunk
    cdef dict live          # address -> Block
    cdef dict arenas        # key of a stream -> Arena
    # What comes while the turn is another's: (None, address, Stream, thread, Event or None), or a Chunk, its size and so on.
    cdef list arrivals
    cdef int tries          # to give chunks back at the end
    cdef object turn        # a lock, held while the tables change, and around nothing that runs Python code
    cdef object holder      # the thread that has the turn

    def __init__(
        self, upstream: Resource | None = None, initial: int = 0, maximum: int | None = None, *, unit: int = 512,
    ) -> None:
        Adaptor.__init__(self, DeviceResource() if upstream is None else upstream)
        self.unit = self.growth = checked_int(unit, "unit", 1, LARGEST, "bytes as int")
        self.total = self.live_bytes = 0
        self.chunks, self.live, self.arenas, self.arrivals, self.turn = {}, {}, {}, [], allocate_lock()
        self.limit = maximum
        size = self.rounded(checked_int(initial, "initial", 0, LARGEST, "bytes as int"))
        if maximum is not None and size > maximum:
            rounded = "" if size == initial else f", rounded to {size} by a unit of {unit} bytes,"
            raise ArgumentError(f"Initial pool size exceeds the maximum pool size: {initial}{rounded} is more than {maximum}"
                                " bytes")
        if initial:
            self.reserve(size)

    cdef int reserve(self, object size) except -1:
        cdef Stream stream = stream_for(None, self.device_index, "the pool")
        cdef Chunk chunk
        self.claim(size)
        try:
            chunk = new_chunk(0, size)
            chunk.address = chunk.first.address = take_from(self.upstream, size, stream)
        except BaseException:
            self.claim(-size)
            raise
        self.chunks[chunk.address] = chunk
        self.arena_of(None, 0).add(chunk.first)
        stream.synchronize()
        return 0

    cdef bint claim(self, int64_t nbytes) except -1:
        # Counts bytes that are about to be taken from upstream, unless they are too many; or, below 0, that went back.
        cdef int64_t most = INT64_MAX if self.most is None else self.most
        cdef bint fits
        begin_turn(&self.lock)
        fits = nbytes <= 0 or nbytes <= most - self.total
        if fits:
            self.total += nbytes
        end_turn(&self.lock)
        return fits

    @property
    def limit(self) -> int | None:
        """int: the most bytes to have from upstream; None is no limit.  It can be set; what there is stays."""
        return self.most

    @limit.setter
    def limit(self, nbytes: int | None) -> None:
        self.most = None if nbytes is None else checked_int(nbytes, "the limit", 0, LARGEST, "bytes as int, or None")

    @property
    def used_bytes(self) -> int:
        """int: bytes that are allocated, as they were rounded."""
        self.settle()
        return self.live_bytes

    @property
    def free_bytes(self) -> int:
        """int: bytes that the pool has and that are not allocated."""
        self.settle()
        return self.total - self.live_bytes

    @property
    def total_bytes(self) -> int:
        """int: bytes that the pool has from upstream."""
        return self.total

    @property
    def free_blocks(self) -> int:
        """int: how many blocks are free."""
        self.settle()
        return sum([len((<Arena>arena).free) for arena in list(self.arenas.values())])

    def rounded(self, nbytes: int) -> int:
        """Returns the bytes that a request takes of the pool.

        Arguments:
            nbytes: int, bytes.
        """
        return -(-nbytes // self.unit) * self.unit

    def release(self, stream: Stream | int | None = None) -> int:
        """Gives chunks of which nothing is allocated back to upstream.

        Arguments:
            stream: Stream or handle as int, whose free memory alone goes back; None is all.
        Returns:
            int, bytes.
        Raises:
            Exception: what upstream raises first, once it was given all of them; such a chunk is gone from the pool.
        """
        cdef Stream only = None if stream is None else stream_for(stream, self.device_index, "the memory")
        cdef Chunk chunk
        cdef object nbytes = 0, refusal = None
        end_put_off()
        for chunk, order in self.idle_chunks(only):
            nbytes += chunk.size
            try:
                self.upstream.give_back(chunk.address, chunk.size, order)
            except BaseException as error:
                refusal = error if refusal is None else refusal
        if refusal is not None:
            raise refusal
        return nbytes

    def take(self, nbytes: int, stream: Stream) -> int:
        cdef object size = self.rounded(nbytes), address
        cdef Block block
        cdef Chunk chunk = new_chunk(0, 0)
        if self.enter():
            try:
                self.absorb()
                block = self.find(size, stream)
                if block is not None:
                    return self.hand_out(block, size)
            finally:
                self.leave()
        address = self.grow(chunk, size, stream)
        if address:
            return address
        if self.enter():  # the last resort: what other streams freed
            try:
                self.absorb()
                block = self.take_over(size, stream)
                if block is not None:
                    return self.hand_out(block, size)
            finally:
                self.leave()
        refuse(self, nbytes, f"the pool has {self.total} bytes, of which {self.live_bytes} are allocated, and a limit of "
               f"{self.most}, or its upstream has no room")

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        if address not in self.live and not self.arrivals:
            raise ArgumentError(f"{address:#x} is not allocated from {self!r}")
        event = None
        if not is_lasting(stream) and not any_capture():
            try:
                event = stream.record_event()
            except CudaError:
                pass  # the legacy default stream, or this one, is asked when somebody has to wait
        self.arrivals.append((None, address, stream, this_thread(), event))
        self.settle()

    def __del__(self):
        # Chunks of which something is still allocated by address go too, for nobody could give that back.
        cdef PoolResource again
        cdef Chunk chunk
        if self.turn is None:
            return
        self.settle()
        for chunk in list(self.chunks.values()):
            if has_to_wait(self.arenas_of(chunk)) and any_capture():
                continue
            try:
                self.upstream.give_back(chunk.address, chunk.size, self.order_of(chunk))
            except BaseException as error:
                if is_refused(error, chunk.address) and self.tries < MOST_TRIES:
                    continue
                tell_unraisable(error, self)
            del self.chunks[chunk.address]
        if self.chunks:
            again = PoolResource.__new__(PoolResource)  # a destructor runs once
            again.upstream, again.device_index, again.turn = self.upstream, self.device_index, self.turn
            again.chunks, again.arrivals, again.tries = self.chunks, [], self.tries + (not any_capture())
            self.chunks = {}
            put_off_end(again)

    # The turn.  A destructor that runs in the midst of it finds it taken, and leaves what it brings in arrivals, which the
    # holder looks through at the end; an allocation there takes a chunk of its own.

    cdef bint enter(self) except -1:
        if self.turn.acquire(False):
            self.holder = get_ident()
            return True
        if self.holder == get_ident():
            return False
        self.turn.acquire()
        self.holder = get_ident()
        return True

    cdef int leave(self) except -1:
        self.holder = None
        self.turn.release()
        self.settle()
        return 0

    cdef int settle(self) except -1:
        while self.arrivals and self.turn.acquire(False):
            self.holder = get_ident()
            try:
                self.absorb()
            finally:
                self.holder = None
                self.turn.release()
        return 0

    cdef int absorb(self) except -1:
        cdef Block block
        cdef Arena arena
        while self.arrivals:
            chunk, second, stream, thread, event = self.arrivals.pop(0)
            arena = self.arena_of(<Stream>stream, thread)
            if chunk is not None:
                self.add_chunk(<Chunk>chunk, second, arena)
                continue
            block = self.live.pop(second, None)
            if block is not None:  # else it was given back twice
                arena.event = event
                self.put(block, arena)
        return 0

    # With the turn.

    cdef Arena arena_of(self, Stream stream, object thread):
        cdef object key = None
        if stream is not None:
            key = (stream.handle, thread if stream.handle == PER_THREAD else 0)
        if key not in self.arenas:
            self.arenas[key] = new_arena(stream)
        return self.arenas[key]

    cdef int add_chunk(self, Chunk chunk, object size, Arena arena) except -1:
        # The first size bytes of it are allocated.
        self.chunks[chunk.address] = chunk
        self.hand_out_of(chunk.first, size, arena)
        return 0

    cdef Block find(self, object size, Stream stream):
        cdef Block block = self.arena_of(stream, this_thread()).fit(size)
        if block is None and stream.handle == PER_THREAD:  # what comes there is behind the legacy default stream
            block = self.arena_of(default_stream(self.device_index), 0).fit(size)
        return self.arena_of(None, 0).fit(size) if block is None else block

    cdef object hand_out(self, Block block, object size):
        cdef Arena arena = block.arena
        arena.remove(block)
        return self.hand_out_of(block, size, arena)

    cdef object hand_out_of(self, Block block, object size, Arena arena):
        if block.size > size:
            split(block, size)
            arena.add(block.behind)
        self.live[block.address] = block
        block.chunk.live += size
        self.live_bytes += size
        return block.address

    cdef int put(self, Block block, Arena arena) except -1:
        block.chunk.live -= block.size
        self.live_bytes -= block.size
        if block.behind is not None and block.behind.arena is arena:
            arena.remove(block.behind)
            join(block)
        if block.before is not None and block.before.arena is arena:
            block = block.before
            arena.remove(block)
            join(block)
        arena.add(block)
        return 0

    cdef list arenas_of(self, Chunk chunk):
        # Behind whose streams' work the free blocks of a chunk are.
        cdef Block block = chunk.first
        cdef list arenas = []
        while block is not None:
            if block.arena is not None and block.arena.stream is not None and block.arena not in arenas:
                arenas.append(block.arena)
            block = block.behind
        return arenas

    cdef Stream order_of(self, Chunk chunk):
        # A stream behind whose work all of an idle chunk is.
        cdef list arenas = self.arenas_of(chunk)
        if arenas and not has_to_wait(arenas):
            return (<Arena>arenas[0]).stream
        return self.after(arenas, default_stream(self.device_index))

    cdef Stream after(self, list arenas, Stream later):
        cdef Arena arena
        cdef Stream stream
        for arena in arenas:
            event, stream = arena.event, arena.stream
            if event is None and stream.handle == PER_THREAD:  # it may be another thread's; the legacy one is behind it
                stream = default_stream(self.device_index)
            if event is None and stream.handle == later.handle:
                continue
            try:
                event = stream.record_event() if event is None else event
            except CudaError as error:
                if meaning_of(error.code) != GONE:  # a stream that its owner destroyed uses nothing
                    raise
                continue
            later.wait_event(event)
        return later

    cdef Block whole(self, Chunk chunk):
        # An idle chunk as one block that is in no arena.
        cdef Block block = chunk.first
        while block is not None:
            block.arena.remove(block)
            block = block.behind
        while chunk.first.behind is not None:
            join(chunk.first)
        return chunk.first

    cdef list idle_chunks(self, Stream only):
        # Takes them out of the tables, with the streams on which they go back.
        cdef list found = []
        cdef Chunk chunk
        if not self.enter():
            return found
        try:
            self.absorb()
            for chunk in list(self.chunks.values()):
                arenas = self.arenas_of(chunk)
                if chunk.live or has_to_wait(arenas) and any_capture():
                    continue
                if only is not None and (len(arenas) != 1 or (<Arena>arenas[0]).stream != only):
                    continue
                found.append((chunk, self.order_of(chunk)))
            for chunk, _ in found:  # behind the last step that may be refused
                self.whole(chunk)
                del self.chunks[chunk.address]
                self.claim(-chunk.size)
        finally:
            self.leave()
        return found

    cdef Block take_over(self, object size, Stream stream):
        # A block that another stream freed, behind whose work this one waits; in the stream's own arena.
        cdef Arena arena, mine = self.arena_of(stream, this_thread())
        cdef Chunk chunk
        cdef Block block
        if any_capture():
            return None
        for arena in list(self.arenas.values()):
            block = arena.fit(size)
            if block is not None:
                self.after([arena] if arena is not mine and arena.stream is not None else [], stream)
                arena.remove(block)
                mine.add(block)
                return block
        for chunk in list(self.chunks.values()):
            if not chunk.live and chunk.size >= size:
                self.after(self.arenas_of(chunk), stream)
                mine.add(self.whole(chunk))
                return chunk.first
        return None

    # Without the turn.

    cdef object grow(self, Chunk chunk, object size, Stream stream):
        # An address of a chunk that is new, or 0 where upstream or the limit leave no room.
        cdef object wanted = max(size, self.growth)
        while True:
            if self.claim(wanted):
                try:
                    chunk.address = take_from(self.upstream, wanted, stream)
                except BaseException as error:
                    self.claim(-wanted)
                    if not isinstance(error, MemoryError):
                        raise
                else:
                    chunk.size = chunk.first.size = wanted
                    chunk.first.address = chunk.address
                    self.arrivals.append((chunk, size, stream, this_thread(), None))
                    self.settle()
                    return chunk.address
            if not self.release():
                return 0


cdef class FixedSizeResource(PoolResource):
    """FixedSizeResource(upstream=None, block_size=1048576, blocks=128)\n--\n\n\
    Blocks of one size, which it takes from upstream many at a time: any request up to the size gets one.

    Arguments:
        upstream: Resource; None is a DeviceResource of the current device.
        block_size: int, bytes.
        blocks: int, how many to take at once, the first ones when it is made.
    Raises:
        TypeError, ValueError: an argument is none of these.
        MemoryError: upstream has no room for the first blocks.
    """

    def __init__(self, upstream: Resource | None = None, block_size: int = 1048576, blocks: int = 128) -> None:
        size = checked_int(block_size, "block_size", 1, LARGEST, "bytes as int")
        number = checked_int(blocks, "blocks", 1, LARGEST // size, "a number as int")
        PoolResource.__init__(self, upstream, size * number, unit=size)
        self.growth = size * number

    @property
    def block_size(self) -> int:
        """int: bytes of a block."""
        return self.unit

    def take(self, nbytes: int, stream: Stream) -> int:
        if nbytes > self.unit:
            refuse(self, nbytes, f"its blocks have {self.unit} bytes")
        return PoolResource.take(self, nbytes, stream)


cdef class BinningResource(Adaptor):
    """BinningResource(upstream, smallest=None, largest=None)\n--\n\n\
    Resources by size: a request goes to the bin of the least size that has room for it, and one that is larger than all bins
    to upstream.

    Arguments:
        upstream: Resource, which the bins that it makes itself stand on too.
        smallest, largest: int, exponents: bins of 2**smallest, 2**(smallest + 1), ... 2**largest bytes, each a
            FixedSizeResource.  None, both of them, makes none.
    Raises:
        TypeError, ValueError: upstream is none, or the exponents are no ints from 0 to 62, smallest first.
    """
    cdef list sizes     # of the bins, ascending
    cdef dict bins      # size -> Resource
    cdef dict sources   # address that is allocated -> Resource that it came from

    def __init__(self, upstream: Resource, smallest: int | None = None, largest: int | None = None) -> None:
        Adaptor.__init__(self, upstream)
        self.sizes, self.bins, self.sources = [], {}, {}
        if smallest is None and largest is None:
            return
        least = checked_int(smallest, "smallest", 0, 62, "an exponent as int, or neither")
        for exponent in range(least, checked_int(largest, "largest", least, 62, "an exponent as int, or neither") + 1):
            self.add_bin(1 << exponent)

    def add_bin(self, nbytes: int, resource: Resource | None = None) -> None:
        """Adds a bin, in place of one of the same size.

        Arguments:
            nbytes: int, the largest request that goes to it.
            resource: Resource of the same device; None makes a FixedSizeResource on upstream.
        Raises:
            TypeError, ValueError: nbytes is no int from 1 on, or resource is none, or of another device.
        """
        size = checked_int(nbytes, "nbytes", 1, LARGEST, "bytes as int")
        if resource is None:
            resource = FixedSizeResource(self.upstream, size, 1)
        if not isinstance(resource, Resource):
            raise TypeError(f"resource is {resource!r} of type {type(resource).__name__}; pass a Resource, or None")
        if (<Resource>resource).device_index != self.device_index:
            raise ArgumentError(f"resource is {resource!r}; the bins are of device {self.device_index}")
        self.bins[size] = resource
        if size not in self.sizes:
            insort(self.sizes, size)

    def resource_for(self, nbytes: int) -> Resource:
        """Returns the resource that a request goes to: a bin's, or upstream.

        Arguments:
            nbytes: int, bytes.
        """
        cdef Py_ssize_t index = bisect_left(self.sizes, nbytes)
        return self.bins[self.sizes[index]] if index < len(self.sizes) else self.upstream

    def take(self, nbytes: int, stream: Stream) -> int:
        source = self.resource_for(nbytes)
        address = take_from(source, nbytes, stream)
        self.sources[address] = source
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        source = self.sources.pop(address, None)
        if source is None:
            raise ArgumentError(f"{address:#x} is not allocated from {self!r}")
        try:
            source.give_back(address, nbytes, stream)
        except BaseException as error:
            if not is_back(error, address):
                self.sources[address] = source
            raise
