"""The raw driver from Python, through cuda.bindings: what one binding call costs, with its status unread."""

from cuda import bindings
from cuda.bindings import driver


class Bindings:
    """Works in device 0's primary context, as every other library here does."""

    def __init__(self, quick):
        checked(driver.cuInit(0))
        self.device = checked(driver.cuDeviceGet(0))
        self.context = checked(driver.cuDevicePrimaryCtxRetain(self.device))
        self.enter_thread()
        self.version = bindings.__version__
        self.settle = driver.cuCtxSynchronize
        self.stream = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def enter_thread(self):
        checked(driver.cuCtxSetCurrent(self.context))

    def pair_512(self):
        pool = checked(driver.cuDeviceGetDefaultMemPool(self.device))
        kept = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        checked(driver.cuMemPoolSetAttribute(pool, kept, driver.cuuint64_t(2**64 - 1)))
        alloc, free, stream = driver.cuMemAllocAsync, driver.cuMemFreeAsync, self.stream
        return lambda: free(alloc(512, stream)[1], stream)

    def stream_make(self):
        make, destroy = driver.cuStreamCreate, driver.cuStreamDestroy
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return lambda: destroy(make(flags)[1])

    def stream_query(self):
        query, stream = driver.cuStreamQuery, self.stream
        return lambda: query(stream)

    def event(self):
        return checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def event_make(self):
        make, destroy = driver.cuEventCreate, driver.cuEventDestroy
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return lambda: destroy(make(flags)[1])

    def event_record(self):
        record, event, stream = driver.cuEventRecord, self.event(), self.stream
        return lambda: record(event, stream)

    def wait_event(self):
        wait, event, stream = driver.cuStreamWaitEvent, self.event(), self.stream
        other = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        checked(driver.cuEventRecord(event, other))
        return lambda: wait(stream, event, 0)

    def current_device(self):
        return driver.cuCtxGetDevice


def checked(answer):
    """What a call answered beside its status, which has to be success."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {status.name}")
    return values[0] if values else None
