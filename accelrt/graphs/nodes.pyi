import os
from typing import NamedTuple

class GraphNode(NamedTuple):
    id: int
    type: str
    dependencies: tuple[int, ...]

def list_nodes(graph: int) -> list[GraphNode]: ...
def list_edges(graph: int) -> list[tuple[int, int]]: ...
def write_dot(graph: int, path: str | os.PathLike[str], verbose: bool) -> None: ...
