"""Whether NVRTC and nvJitLink are there, of the CUDA that the installed cuda-bindings are of."""

from accelrt.errors import CompilerNotFoundError
from accelrt.kernels import jitlink, nvrtc


def missing(call):
    try:
        call()
    except CompilerNotFoundError as error:
        return str(error)
    return ""


NVRTC_MISSING = missing(nvrtc.load)
NVJITLINK_MISSING = missing(jitlink.version)
