"""One adapter a library for mixed_libraries.py: the same few operations, by that library's own means.

An adapter belongs to one thread, on whose own stream it works.  Arrays are one-dimensional, of uint8.  A view
of another library's array shares its memory and keeps it alive; the caller puts the streams in order.
"""

import numpy as np

import accelrt

BLOCK = 256
ADD = r"""
extern "C" __global__ void add(unsigned char *bytes, unsigned long long count, int amount) {
    unsigned long long first = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (unsigned long long i = first; i < count; i += (unsigned long long)gridDim.x * blockDim.x)
        bytes[i] += amount;
}
"""
increase = accelrt.elementwise("uint8 x, uint8 amount", "uint8 y", "y = x + amount", name="mixed_increase")


def grid(count):
    return min(4096, -(-count // BLOCK))


class Accelrt:
    """accelrt's own arrays, and what the adapters of libraries without kernels use."""

    name = "accelrt"

    @staticmethod
    def install():
        pass

    def __init__(self):
        self.stream = self.make_stream()
        self.mine = accelrt.Stream.from_any(self.stream)

    def make_stream(self):
        return accelrt.Stream()

    def allocate(self, nbytes):
        return accelrt.empty(nbytes, np.uint8, stream=self.mine)

    def address(self, array):
        return array.ptr

    def fill(self, array, value):
        array.fill_(value, stream=self.mine)

    def add(self, array, amount):
        increase(array, amount, out=array, stream=self.mine)

    def view(self, array):
        with accelrt.stream(self.mine):
            found = accelrt.asarray(array)
        return found if found.dtype == np.uint8 else found.view(np.uint8)

    def read(self, array):
        out = np.empty(array.size, np.uint8)
        accelrt.copy(out, array, stream=self.mine)
        return out


class Torch(Accelrt):
    name = "torch"

    @staticmethod
    def install():
        import torch

        import accelrt.interop.torch

        accelrt.interop.torch.install()
        torch.cuda.init()

    def make_stream(self):
        import torch

        self.torch = torch
        return torch.cuda.Stream()

    def allocate(self, nbytes):
        with self.torch.cuda.stream(self.stream):
            return self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")

    def address(self, array):
        return array.data_ptr()

    def fill(self, array, value):
        with self.torch.cuda.stream(self.stream):
            array.fill_(value)

    def add(self, array, amount):
        with self.torch.cuda.stream(self.stream):
            array.add_(amount)

    def view(self, array):
        with self.torch.cuda.stream(self.stream):
            if hasattr(array, "__dlpack__"):
                return self.torch.from_dlpack(array).view(self.torch.uint8)
            return self.torch.as_tensor(array, device="cuda")

    def read(self, array):
        with self.torch.cuda.stream(self.stream):
            found = array.cpu().numpy()
        self.stream.synchronize()
        return found


class Cupy(Accelrt):
    name = "cupy"

    @staticmethod
    def install():
        import accelrt.interop.cupy

        accelrt.interop.cupy.install()

    def make_stream(self):
        import cupy

        self.cupy = cupy
        return cupy.cuda.Stream(non_blocking=True)

    def allocate(self, nbytes):
        with self.stream:
            return self.cupy.empty(nbytes, self.cupy.uint8)

    def address(self, array):
        return array.data.ptr

    def fill(self, array, value):
        with self.stream:
            array.fill(value)

    def add(self, array, amount):
        with self.stream:
            self.cupy.add(array, np.uint8(amount), out=array)

    def view(self, array):
        with self.stream:
            if hasattr(array, "__dlpack__"):
                return self.cupy.from_dlpack(array).view(self.cupy.uint8)
            return self.cupy.asarray(array)

    def read(self, array):
        with self.stream:
            found = array.get(stream=self.stream)
        self.stream.synchronize()
        return found


class Numba(Accelrt):
    """numba takes no DLPack, so that what has nothing else comes to it as an Array of accelrt's."""

    name = "numba"
    kernels = None

    @staticmethod
    def install():
        import numba

        import accelrt.interop.numba

        accelrt.interop.numba.install()
        numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = False
        Numba.kernels = Numba.make_kernels()

    @staticmethod
    def make_kernels():
        from numba import cuda

        @cuda.jit
        def fill(array, value):
            for index in range(cuda.grid(1), array.size, cuda.gridsize(1)):
                array[index] = value

        @cuda.jit
        def add(array, amount):
            for index in range(cuda.grid(1), array.size, cuda.gridsize(1)):
                array[index] += amount

        return fill, add

    def __init__(self):
        from numba import cuda

        self.cuda = cuda
        self.owner = accelrt.Stream()
        self.stream = cuda.external_stream(self.owner.cuda_stream)  # accelrt's stream as one of numba's
        self.mine = self.owner

    def allocate(self, nbytes):
        with accelrt.stream(self.mine):
            array = self.cuda.device_array(nbytes, np.uint8, stream=self.stream)
        accelrt.record_stream(self.address(array), self.mine)  # numba names no stream when it allocates
        return array

    def address(self, array):
        return array.__cuda_array_interface__["data"][0]

    def fill(self, array, value):
        self.kernels[0][grid(array.size), BLOCK, self.stream](array, np.uint8(value))

    def add(self, array, amount):
        self.kernels[1][grid(array.size), BLOCK, self.stream](array, np.uint8(amount))

    def view(self, array):
        if not hasattr(array, "__cuda_array_interface__"):
            array = super().view(array)
        return self.cuda.as_cuda_array(array, sync=False)

    def read(self, array):
        found = array.copy_to_host(stream=self.stream)
        self.mine.synchronize()
        return found


class CudaCore(Accelrt):
    """Buffers of cuda.core's, and of other libraries' arrays the views that it makes of them."""

    name = "cuda.core"
    resource = kernel = None

    @staticmethod
    def install():
        from cuda.core import Device, Program, ProgramOptions

        from accelrt.interop import cuda_core

        device = Device(0)
        device.set_current()
        CudaCore.resource = cuda_core.MemoryResource(0)
        major, minor = device.compute_capability
        program = Program(ADD, "c++", ProgramOptions(arch=f"sm_{major}{minor}"))
        CudaCore.image = program.compile("cubin")
        CudaCore.kernel = CudaCore.image.get_kernel("add")

    def make_stream(self):
        import cuda.core

        self.core = cuda.core
        device = cuda.core.Device(0)
        device.set_current()
        return device.create_stream()

    def allocate(self, nbytes):
        return self.resource.allocate(nbytes, stream=self.stream)

    def address(self, array):
        return int(array.handle)

    def fill(self, array, value):
        array.fill(value, stream=self.stream)

    def add(self, array, amount):
        if isinstance(array, self.core.Buffer):
            address, count = int(array.handle), array.size
        else:
            address, count = array.ptr, int(np.prod(array.shape))
        config = self.core.LaunchConfig(grid=grid(count), block=BLOCK)
        self.core.launch(self.stream, config, self.kernel, address, np.uint64(count), np.int32(amount))

    def view(self, array):
        from cuda.core.utils import StridedMemoryView

        if not hasattr(
            array, "__dlpack__"
        ):  # an interface of before version 3, which cuda.core does not take
            array = super().view(array)
        make = getattr(StridedMemoryView, "from_any_interface", StridedMemoryView)
        return make(array, stream_ptr=int(self.stream.handle))

    def read(self, array):
        return super().read(super().view(getattr(array, "exporting_obj", array)))


class Rmm(Accelrt):
    """RMM has memory, but no kernels, and no views: those are accelrt's."""

    name = "rmm"
    resource = None

    @staticmethod
    def install():
        from accelrt.interop import rmm

        rmm.install()
        Rmm.resource = rmm.resource()

    def make_stream(self):
        import rmm

        self.rmm = rmm
        self.owner = accelrt.Stream()
        return rmm.pylibrmm.stream.Stream(self.owner)  # accelrt's stream as one of RMM's

    def allocate(self, nbytes):
        return self.rmm.DeviceBuffer(size=nbytes, stream=self.stream)

    def fill(self, array, value):
        array.copy_from_host(np.full(array.size, value, np.uint8), self.stream)

    def add(self, array, amount):
        super().add(array if isinstance(array, accelrt.Array) else super().view(array), amount)

    def read(self, array):
        if isinstance(array, accelrt.Array):
            return super().read(array)
        found = array.copy_to_host(stream=self.stream)
        self.mine.synchronize()
        return found


ADAPTERS = {
    each.name: each for each in (Numba, Torch, Cupy, CudaCore, Rmm, Accelrt)
}  # in order of installation
