"""Memory that allocations of graphs have: how much there is, and what is given back."""

from __future__ import annotations

from accelrt.annotations import DeviceArgument
from accelrt.graphs import nodes
from accelrt.graphs.definition import GraphDefinition
from accelrt.graphs.definition_node import DefinitionNode
from accelrt.streams.stream import Stream, current_stream
from accelrt.streams.stream import stream as using_stream

ATTRIBUTES = ("used", "used_peak", "reserved", "reserved_peak")  # CUgraphMem_attribute


def graph_memory_stats(device: DeviceArgument | None = None) -> dict[str, int]:
    """Returns the bytes of a device that allocations of graphs hold (cuDeviceGetGraphMemAttribute).

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Returns:
        dict of bytes: "used", "used_peak", "reserved" and "reserved_peak": what graphs use, what the driver
            holds for them, and the most of both since the peaks were reset.
    """
    return {name: nodes.graph_memory(device, number) for number, name in enumerate(ATTRIBUTES)}


def reset_peak_graph_memory_stats(device: DeviceArgument | None = None) -> None:
    """Has the peaks of graph_memory_stats begin anew with what there is.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    nodes.change_graph_memory(device, False)


def free_graph_memory(memory: DefinitionNode | int, stream: Stream | int | None = None) -> None:
    """Frees what an allocation of a graph has left, in a stream's order, behind its launches.

    Arguments:
        memory: DefinitionNode of the allocation, or its address as int.
        stream: Stream, or handle as int; None is the current one.
    Raises:
        TypeError: the node is no allocation.
        CudaError: the address is none that an allocation of a graph has, or no launch has it now.
    """
    where = current_stream() if stream is None else Stream.from_any(stream)
    definition = GraphDefinition(device=where.device_index)
    definition.free(memory)
    instance = definition.instantiate()
    with using_stream(where):
        instance.replay()


def graph_memory_trim(device: DeviceArgument | None = None) -> None:
    """Gives what the driver holds for graphs, and no launch has, back to the device
    (cuDeviceGraphMemTrim).

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    """
    nodes.change_graph_memory(device, True)
