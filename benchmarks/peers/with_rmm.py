"""RMM's way to do the memory rows, through its two resources that cache: the driver's pool and its own."""

import rmm
import rmm.mr
from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream

from peers.churn import churn_sized

MIB = 1 << 20


class Rmm:
    """Raw pointers come from a memory resource's allocate, on the default stream unless one is given."""

    def __init__(self, quick):
        self.version = rmm.__version__
        self.settle = DEFAULT_STREAM.synchronize
        self.memory = self.resource()
        self.stream = Stream()

    def enter_thread(self):
        """The runtime API makes device 0 current on any thread by itself."""

    def pair(self, size):
        alloc, free = self.memory.allocate, self.memory.deallocate
        return lambda: free(alloc(size), size)

    def pair_512(self):
        return self.pair(512)

    def pair_4mib(self):
        return self.pair(4 * MIB)

    def pair_512_stream(self):
        alloc, free, stream = self.memory.allocate, self.memory.deallocate, self.stream
        return lambda: free(alloc(512, stream), 512, stream)

    def mixed_200(self):
        return churn_sized(self.memory.allocate, self.memory.deallocate)

    def buffer_512(self):
        make, memory = rmm.DeviceBuffer, self.memory
        return lambda: make(size=512, mr=memory)


class RmmAsync(Rmm):
    """On cudaMallocAsync."""

    @staticmethod
    def resource():
        return rmm.mr.CudaAsyncMemoryResource()


class RmmPool(Rmm):
    """The coalescing pool, which grows from little: by default it would take half of the device."""

    @staticmethod
    def resource():
        return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=2 * MIB)
