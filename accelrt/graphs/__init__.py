"""Capture, change and replay of graphs.

graph        CUDAGraph: capture, replay, update; the contexts that capture it and bodies of conditional nodes;
             the states of random numbers that its replays move on
nodes        the driver's graphs: nodes, instantiation and update; graphs of nogil code, for the Cython API
edits        what is done to nodes by hand: described, added, changed, taken out
bindings     where the nodes of what is instantiated name memory, and what they are given in its place
definition   GraphDefinition: graphs made by hand, and captured graphs taken apart
definition_node  DefinitionNode: what one of its nodes tells, and what is changed of it alone
definition_parts  what a GraphDefinition knows of its nodes, and of the graphs that they own
graph_memory  what allocations of graphs hold, and what is given back of it
node_values  what nodes made by hand do, as values: told, changed in part, as plain data
parameters   GraphParameters: memory that a graph uses is found, named, and given anew without a copy
hooks        functions called before and after captures and replays
callables    make_graphed_callables: functions captured once and replayed
pytree       memory in tuples, lists and dicts
array_spec   where an array lies, how long it is, its shape and type

`graph` is one long file since it is one class, whose states each of its methods has to keep true; what asks
the driver about nodes is in `nodes`.
"""
