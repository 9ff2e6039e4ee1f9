"""sleep: a kernel that takes a given time."""
from libc.stdint cimport int64_t

from accelrt.core.integers cimport checked_int
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.registry import driver_name
from accelrt.kernels.kernel cimport Kernel
from accelrt.kernels.module import Module, host_kernel
from accelrt.streams.current cimport stream_of
from accelrt.streams.stream cimport Stream

cdef extern from *:
    """
    #include <errno.h>
    #include <time.h>
    static void accelrt_sleep_ns(long long ns) {
        struct timespec rest = {ns / 1000000000, ns % 1000000000};
        while (nanosleep(&rest, &rest) == -1 && errno == EINTR) {}
    }
    """
    void sleep_ns "accelrt_sleep_ns"(long long ns) noexcept nogil

PTX = b"""
.version 6.4
.target sm_50
.address_size 64

.visible .entry accelrt_sleep (.param .u64 given)
{
    .reg .pred %more;
    .reg .u64 %cycles, %start, %now;
    ld.param.u64 %cycles, [given];
    mov.u64 %start, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %cycles;
    @%more bra again;
    ret;
}
"""
cdef dict kernels = {}  # by ordinal


cdef void sleep_block(const void* where, void** arguments) noexcept nogil:
    sleep_ns((<int64_t*>arguments[0])[0])


def forget_kernels():
    """Unloads what sleep loaded; it is loaded again when it is needed."""
    kernels.clear()


cdef Kernel kernel_for(int ordinal):
    made = kernels.get(ordinal)
    if made is None:
        if driver_name() == "cuda":
            made = Module(PTX, ordinal).function("accelrt_sleep", "int64_t cycles")
        else:
            made = host_kernel(<size_t>&sleep_block, "int64_t cycles", name="accelrt_sleep", device=ordinal)
        made = kernels.setdefault(ordinal, made)
    return made


def sleep(cycles, stream=None):
    """Puts a kernel into a stream that takes so many cycles of the device's clock (torch.cuda._sleep).

    Arguments:
        cycles: int, of a multiprocessor's clock, which runs at 1 to 2 GHz; on the host device a cycle is a nanosecond.
        stream: Stream, handle as int, or None for the current stream of the current device.
    Raises:
        ValueError, TypeError: cycles is negative or no int, or the stream is none.
        CudaError: the driver refused.
    """
    cdef Stream chosen
    number = checked_int(cycles, "cycles", 0, (1 << 63) - 1, "cycles of the device's clock as int")
    chosen = stream_of(stream, ordinal_of(None))
    kernel_for(chosen.device_index).launch(1, 1, (number,), stream=chosen)


_sleep = sleep  # by torch.cuda's name
