import os
from typing import NamedTuple

from accelrt.graphs.graph import CUDAGraph
from accelrt.kernels.kernel import Kernel

class KernelParams(NamedTuple):
    kernel: Kernel | None
    name: str
    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[object, ...] | None

class NodeChange: ...

class GraphNode(NamedTuple):
    id: int
    type: str
    dependencies: tuple[int, ...]
    @property
    def params(self) -> KernelParams: ...
    @params.setter
    def params(self, params: KernelParams) -> None: ...

def list_nodes(graph: int, owner: CUDAGraph | None = None) -> list[GraphNode]: ...
def list_edges(graph: int) -> list[tuple[int, int]]: ...
def write_dot(graph: int, path: str | os.PathLike[str], verbose: bool) -> None: ...
