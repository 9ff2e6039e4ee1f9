from accelrt.annotations import DeviceArgument
from accelrt.stream import Stream

class ExternalStream(Stream):
    def __init__(
        self, stream_ptr: int, device: DeviceArgument | None = None, owner: object = None
    ) -> None: ...
