"""DLPack's structures for tests: capsules looked into, taken and made by ctypes."""

import ctypes

VERSIONED, UNVERSIONED = b"dltensor_versioned", b"dltensor"
api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
USED = {VERSIONED: b"used_dltensor_versioned", UNVERSIONED: b"used_dltensor"}  # stays alive, as capsules want


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


def look(capsule):
    """The structure in a capsule that nobody took yet."""
    name = api.PyCapsule_GetName(capsule)
    address = api.PyCapsule_GetPointer(capsule, name)
    return (Versioned if name == VERSIONED else Managed).from_address(address)


def take(capsule):
    """The same, which is the caller's from then on: its deleter has to be called once."""
    found = look(capsule)
    api.PyCapsule_SetName(capsule, USED[api.PyCapsule_GetName(capsule)])
    return found


class Producer:
    """An object that gives a tensor made by hand to whoever asks, and counts how often it came back."""

    def __init__(self, array, versioned=True, device=(1, 0), **changes):
        self.array, self.device, self.deleted, self.asked = array, device, 0, []
        self.managed = (Versioned if versioned else Managed)()
        if versioned:
            self.managed.major, self.managed.minor = 1, 0
        tensor, ndim = self.managed.tensor, array.ndim
        tensor.data, tensor.ndim = array.ctypes.data, ndim
        tensor.device_type, tensor.device_id = device
        tensor.code, tensor.bits, tensor.lanes = "iufxxcb".index(array.dtype.kind), 8 * array.itemsize, 1
        self.shape = (ctypes.c_int64 * ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * ndim)(*(stride // array.itemsize for stride in array.strides))
        tensor.shape, tensor.strides = self.shape, self.strides
        for name, value in changes.items():
            setattr(tensor if hasattr(Tensor, name) else self.managed, name, value)
        self.managed.deleter = self.deleter = DELETER(self.count)

    def count(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **given):
        self.asked.append(given)
        name = VERSIONED if isinstance(self.managed, Versioned) else UNVERSIONED
        return api.PyCapsule_New(ctypes.addressof(self.managed), name, None)


SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
OUT = ctypes.POINTER(ctypes.c_void_p)


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        (
            "allocate",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Tensor), OUT, ctypes.c_void_p, SET_ERROR),
        ),
        ("from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, OUT)),
        ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))),
        ("describe", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))),
        ("current_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, OUT)),
    )


def exchange_api(kind):
    """The table of functions that a type of arrays has."""
    capsule = kind.__dlpack_c_exchange_api__
    return ExchangeApi.from_address(api.PyCapsule_GetPointer(capsule, b"dlpack_exchange_api"))
