"""What a device is: name, compute capability, memory, and the attributes people ask for."""
cimport accelrt.devices.device as devices
from accelrt.devices.device_facts import read_properties

cdef list known = []  # by ordinal; None where it was not asked for yet.  Devices do not change after init


def get_device_properties(device=None):
    """A device's constants.

    Arguments:
        device: int, "cuda:1", "host:0", an object with an index, or None for the current one.
    Returns:
        DeviceProperties, the same object at every call.
    Raises:
        ValueError, TypeError: it names no device.
    """
    cdef Py_ssize_t ordinal
    if type(device) is int and devices.known_devices() and 0 <= device < len(known):
        ordinal = device
    else:
        ordinal = devices.ordinal_of(device)
        if ordinal >= len(known):
            known.extend([None] * (devices.count_devices() - len(known)))
    found = known[ordinal]
    if found is None:
        found = known[ordinal] = read_properties(ordinal)
    return found


def get_device_name(device=None):
    """A device's name, such as "NVIDIA H200" (cuDeviceGetName); arguments as get_device_properties."""
    return get_device_properties(device).name


def get_device_capability(device=None):
    """A device's compute capability, (major, minor); (0, 0) for the host device."""
    found = get_device_properties(device)
    return found.major, found.minor
