"""The libraries that exchange.py exchanges arrays between."""

import contextlib
import ctypes
import importlib
import os

import numpy as np

import accelrt

BYTES = 3 << 20
ON_HOST = os.environ.get("ACCELRT_DRIVER") == "host"
DLPACK, INTERFACE = "DLPack", "CUDA Array Interface"


def host_bytes(address):
    return np.frombuffer(ctypes.string_at(address, BYTES), np.uint8)


class Library:
    """How one library makes, fills, reads and takes arrays of bytes, each on a stream of its own."""

    name = ""
    makes, takes = (DLPACK,), (DLPACK,)

    def current(self):
        """Makes the library's own stream its current one."""
        return contextlib.nullcontext()

    def make(self, values):
        raise NotImplementedError

    def fill(self, array, value):
        """Puts a fill into the library's stream."""
        raise NotImplementedError

    def read(self, array):
        """The bytes, as the library's stream finds them."""
        raise NotImplementedError

    def take(self, source, protocol):
        raise NotImplementedError

    @property
    def handle(self):
        """Of its stream."""
        raise NotImplementedError


class NumPy(Library):
    name = "numpy"

    def make(self, values):
        return values.copy()

    def read(self, array):
        return array

    def take(self, source, protocol):
        return np.from_dlpack(source) if ON_HOST else np.from_dlpack(source, device="cpu", copy=True)


class Torch(Library):
    name = "torch"
    makes = takes = (DLPACK,) if ON_HOST else (DLPACK, INTERFACE)

    def __init__(self):
        self.torch = importlib.import_module("torch")
        self.stream = None if ON_HOST else self.torch.cuda.Stream()

    def current(self):
        return super().current() if ON_HOST else self.torch.cuda.stream(self.stream)

    def make(self, values):
        return self.torch.from_numpy(values.copy()).to("cpu" if ON_HOST else "cuda")

    def fill(self, array, value):
        array.fill_(value)

    def read(self, array):
        return array.cpu().view(self.torch.uint8).numpy()

    def take(self, source, protocol):
        if protocol == DLPACK:
            return self.torch.from_dlpack(source)
        return self.torch.as_tensor(source, device="cuda")

    @property
    def handle(self):
        return self.stream.cuda_stream


class CuPy(Library):
    name = "CuPy"
    makes = takes = (DLPACK, INTERFACE)

    def __init__(self):
        self.cupy = importlib.import_module("cupy")
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def current(self):
        return self.stream

    def make(self, values):
        made = self.cupy.asarray(values)
        self.stream.synchronize()
        return made

    def fill(self, array, value):
        array.data.memset_async(value, BYTES, self.stream)

    def read(self, array):
        return self.cupy.asnumpy(array, stream=self.stream).view(np.uint8)

    def take(self, source, protocol):
        return self.cupy.from_dlpack(source) if protocol == DLPACK else self.cupy.asarray(source)

    @property
    def handle(self):
        return self.stream.ptr


class Numba(Library):
    name = "numba"
    makes = (INTERFACE,)
    takes = (INTERFACE,)

    def __init__(self):
        self.cuda = importlib.import_module("numba.cuda")
        self.memory = importlib.import_module("numba.cuda.cudadrv.driver")
        self.owner = accelrt.Stream()  # numba's own wait for the legacy default stream
        self.stream = self.cuda.external_stream(self.owner.cuda_stream)

    def make(self, values):
        made = self.cuda.to_device(values, stream=self.stream)
        self.stream.synchronize()
        return made.bind(self.stream)

    def fill(self, array, value):
        self.memory.device_memset(array, value, BYTES, stream=self.stream)

    def read(self, array):
        found = array.copy_to_host(stream=self.stream)
        self.stream.synchronize()
        return found.view(np.uint8)

    def take(self, source, protocol):
        return self.cuda.as_cuda_array(source)

    @property
    def handle(self):
        return self.owner.cuda_stream


class CudaCore(Library):
    name = "cuda.core"
    takes = (DLPACK,) if ON_HOST else (DLPACK, INTERFACE)
    makes = () if ON_HOST else (DLPACK,)

    def __init__(self):
        self.view = importlib.import_module("cuda.core.utils").StridedMemoryView
        self.driver = importlib.import_module("cuda.bindings.driver")
        if not ON_HOST:
            self.device = importlib.import_module("cuda.core").Device(0)
            self.device.set_current()
            self.stream = self.device.create_stream()

    def make(self, values):
        made = self.device.memory_resource.allocate(BYTES, stream=self.stream)
        self.check(self.driver.cuMemcpyHtoDAsync(int(made.handle), values.ctypes.data, BYTES, self.handle))
        self.stream.sync()
        return made

    def fill(self, array, value):
        array.fill(value, stream=self.stream)

    def read(self, array):
        if array.device_id < 0:
            return host_bytes(array.ptr)
        found = np.empty(BYTES, np.uint8)
        self.check(self.driver.cuMemcpyDtoHAsync(found.ctypes.data, array.ptr, BYTES, self.handle))
        self.stream.sync()
        return found

    def take(self, source, protocol):
        handle = -1 if ON_HOST or source.array.__class__.__module__ == "numpy" else self.handle
        if protocol == DLPACK:
            return self.view.from_dlpack(source, stream_ptr=handle)
        return self.view.from_cuda_array_interface(source, stream_ptr=handle)

    def check(self, answer):
        assert answer[0] == 0, answer

    @property
    def handle(self):
        return int(self.stream.handle)


class Accelrt(Library):
    name = "accelrt"
    makes = takes = (DLPACK,) if ON_HOST else (DLPACK, INTERFACE)

    def __init__(self):
        self.stream = accelrt.Stream()

    def current(self):
        return accelrt.stream(self.stream)

    def make(self, values):
        return accelrt.asarray(values)

    def fill(self, array, value):
        array.fill_(value)

    def read(self, array):
        return array.numpy().view(np.uint8)

    def take(self, source, protocol):
        return accelrt.from_dlpack(source) if protocol == DLPACK else accelrt.asarray(source)

    @property
    def handle(self):
        return self.stream.cuda_stream


KINDS = (NumPy, Torch, CudaCore, Accelrt) if ON_HOST else (NumPy, Torch, CuPy, Numba, CudaCore, Accelrt)
