from typing import Any

from accelrt.annotations import DeviceArgument

PREFIXES: tuple[str, ...]
DRIVER_NOT_LOADED: int
DEPRECATED: int

class Place:
    uuid: str
    name: str
    parent: str | None
    def __init__(self, uuid: str, name: str, parent: str | None) -> None: ...

def place_for(device: DeviceArgument | Place | None = None) -> Any: ...
def reading_error(reading: str, place: Place, code: int) -> Exception: ...
