"""Errors of a device's memory.  Source: NVML API Reference Guide, "Device Queries"."""

from accelrt.annotations import DeviceArgument
from accelrt.errors import NotSupportedError
from accelrt.nvml.library import function_number
from accelrt.readings.nvml_calls import Place, place_for, read_large, read_several, reading_error
from accelrt.readings.records import EccErrors, RemappedRows

__all__ = ["ecc_errors", "ecc_mode", "remapped_rows"]

TOTAL = function_number("nvmlDeviceGetTotalEccErrors")
MODE = function_number("nvmlDeviceGetEccMode")
ROWS = function_number("nvmlDeviceGetRemappedRows")

CORRECTED, UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
VOLATILE, AGGREGATE = 0, 1  # nvmlEccCounterType_t
UNSUPPORTED = 3


def ecc_errors(device: DeviceArgument | None = None) -> EccErrors:
    """How many errors of memory a device found, corrected ones and others (nvmlDeviceGetTotalEccErrors).

    Arguments: as temperature.
    Raises:
        NotSupportedError: the device has no error correction, or it is off.
    """
    place = place_for(device)
    if not isinstance(place, Place):
        errors: EccErrors = place.ecc_errors()
        return errors
    found: list[int | None] = []
    for since in (VOLATILE, AGGREGATE):
        for kind in (CORRECTED, UNCORRECTED):
            try:
                found.append(read_large("ecc_errors", TOTAL, place, kind, since))
            except NotSupportedError:
                found.append(None)
    if all(count is None for count in found):
        raise reading_error("ecc_errors", place, UNSUPPORTED)
    return EccErrors(*found)


def ecc_mode(device: DeviceArgument | None = None) -> bool:
    """Whether a device's error correction is on now (nvmlDeviceGetEccMode)."""
    place = place_for(device)
    if not isinstance(place, Place):
        return bool(place.ecc_mode())
    return read_several("ecc_mode", MODE, place, 2)[0] == 1


def remapped_rows(device: DeviceArgument | None = None) -> RemappedRows:
    """Rows of memory that a device has replaced by spare ones (nvmlDeviceGetRemappedRows)."""
    place = place_for(device)
    if not isinstance(place, Place):
        rows: RemappedRows = place.remapped_rows()
        return rows
    corrected, uncorrected, pending, failed = read_several("remapped_rows", ROWS, place, 4)
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))
