"""The device that tests run on, behind the table "faults" of the driver's calls (driver/DESIGN.md)."""

from __future__ import annotations

from accelrt.driver import registry
from accelrt.driver.host import driver as host
from accelrt.runtime.init import chosen_driver, init, is_available, is_initialized

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from types import ModuleType


def use_device(driver: str | None = None) -> str:
    """Initialises accelrt so that failing(), park() and the like can have calls of the driver fail and stop.

        accelrt.testing.use_device()   # in conftest.py, before anything uses a device

    Arguments:
        driver: "host" or "cuda"; None is what ACCELRT_DRIVER names, and without it "cuda" where there is a
            GPU, else "host".
    Returns:
        str: "host" or "cuda", which it is.  Where accelrt was initialised before, nothing changes.
    Raises:
        DriverNotFoundError: "cuda", and no GPU can be used.
        RuntimeError: accelrt runs on the other driver already.
        ValueError: no such driver, or a malformed setting of the host device.

    Each call of the driver then counts itself, which costs some nanoseconds: this is for tests.
    """
    if driver not in (None, "host", "cuda"):
        raise ValueError(f"driver is {driver!r}; pass 'host', 'cuda' or None")
    if is_initialized():
        init(driver)  # raises where it is the other one
        return chosen_driver()
    name = driver or wanted_by_environment()
    if name == "host":
        host.read_settings()  # names a malformed one
    elif not is_available():
        init(name)  # raises, and says why
    table().wrap(name, posing=True)
    init("faults")
    return name


def wanted_by_environment() -> str:
    from accelrt import env

    named = env.value("ACCELRT_DRIVER")
    if named != "auto":
        return str(named)
    return "cuda" if is_available() else "host"


def table() -> ModuleType:
    """Imports the module of the table "faults", which is imported where something asks for it."""
    from accelrt.driver import testing

    return testing


def wrapped_table() -> ModuleType:
    """Imports the same, where this process runs behind it.

    Raises:
        RuntimeError: accelrt was initialised without it.
    """
    if is_initialized() and not registry.wrapped_driver():
        raise RuntimeError(
            "accelrt was initialised before accelrt.testing.use_device(), so no call of the driver can fail "
            "or stop here; call use_device() first, in conftest.py, or set usefixtures = accelrt_device in "
            "pytest's settings"
        )
    use_device()
    return table()
