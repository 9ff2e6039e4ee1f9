"""Functions of NVIDIA's driver that are called by way of cuda.bindings, with errors as those of the rows.

They are of features that no hot path has and the host device lacks; what both devices have is a row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from accelrt.errors import not_supported
from accelrt.runtime import init
from accelrt.status import status_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__: list[str] = []


def open_bindings(refusal: str, call: str) -> Any:
    """cuda.bindings.driver, where this process runs on a GPU.

    Arguments:
        refusal: what the error says on the host device.  call: the function that it names.
    Raises:
        NotSupportedError: accelrt runs on the host device.
    """
    init.init()
    if init.chosen_driver() != "cuda":
        raise not_supported(refusal, call)
    return importlib.import_module("cuda.bindings.driver")


def ask(
    bindings: Any,
    needs: str,
    name: str,
    arguments: tuple[Any, ...],
    details: Mapping[str, object],
    meanings: Mapping[int, str] | None = None,
) -> Any:
    """Calls a function of the driver, and returns its answers beside the status.

    Arguments:
        needs: what an error says where the function is missing: "green contexts need a driver of ...".
        arguments: of the function.  details: what an error says it was asked for, by name.
        meanings: by status code, what it means here and what to do.
    Raises:
        NotSupportedError: the driver, or cuda.bindings, is too old.
        CudaError: the driver refused.
    """
    try:
        status, *answers = getattr(bindings, name)(*arguments)
    except (AttributeError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "not found" not in str(error):
            raise
        raise not_supported(
            f"the driver, or the installed cuda-bindings, has no {name}; {needs}", name
        ) from error
    if int(status):
        pairs = tuple(part for pair in details.items() for part in pair)
        raise status_error(int(status), name, pairs, (meanings or {}).get(int(status), ""))
    return answers[0] if len(answers) == 1 else answers
