from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from accelrt.kernels.elementwise_source import Parameter
from accelrt.streams.stream import Stream

_Results: TypeAlias = Any  # an Array, or a tuple of them, as the kernel declares

class ElementwiseKernel:
    def __init__(
        self,
        inputs: str,
        outputs: str,
        operation: str,
        name: str = ...,
        preamble: str = ...,
        options: Sequence[str] = ...,
    ) -> None: ...
    @property
    def inputs(self) -> tuple[Parameter, ...]: ...
    @property
    def outputs(self) -> tuple[Parameter, ...]: ...
    @property
    def operation(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def preamble(self) -> str: ...
    @property
    def options(self) -> tuple[str, ...]: ...
    def __call__(
        self,
        *arguments: object,
        out: object = None,
        dtypes: Mapping[str, object] | None = None,
        stream: Stream | int | None = None,
        size: int | None = None,
    ) -> _Results: ...
    def unload(self) -> None: ...

def elementwise(
    inputs: str,
    outputs: str,
    operation: str,
    *,
    name: str = ...,
    preamble: str = ...,
    options: Sequence[str] = ...,
) -> ElementwiseKernel: ...
