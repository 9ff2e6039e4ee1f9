"""Which device is which, and how it is: accelrt and torch.cuda have the same names for it."""

from functools import partial
from types import ModuleType
from typing import ClassVar


class Readings:
    """Of the first device.  Each is done once before: the first opens the session with NVML."""

    cuda: ClassVar[ModuleType]

    def __init_subclass__(cls, cuda: ModuleType):
        cls.cuda = cuda

    def device_count(self):
        return self.cuda.device_count

    def get_properties(self):
        return self.read(self.cuda.get_device_properties)

    def temperature(self):
        return self.read(self.cuda.temperature)

    def power_draw(self):
        return self.read(self.cuda.power_draw)

    def utilization(self):
        return self.read(self.cuda.utilization)

    def clock_rate(self):
        return self.read(self.cuda.clock_rate)

    def memory_used(self):
        return self.read(self.cuda.device_memory_used)

    def read(self, reading):
        reading(0)
        return partial(reading, 0)
