from typing import Any

from accelrt.stream import Stream

class ExternalStream(Stream):
    def __init__(self, stream_ptr: int, device: Any = None, owner: object = None) -> None: ...
