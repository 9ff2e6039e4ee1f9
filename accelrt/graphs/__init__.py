"""Capture, change and replay of graphs.

graph       CUDAGraph: capture, replay, update; the contexts that capture it and bodies of conditional nodes;
            the states of random numbers that its replays move on
nodes       the driver's graphs: nodes, instantiation and update; graphs of nogil code, for the Cython API
hooks       functions called before and after captures and replays
callables   make_graphed_callables: functions captured once and replayed
pytree      memory in tuples, lists and dicts
array_spec  where an array lies, how long it is, its shape and type

`graph` is one long file since it is one class, whose states each of its methods has to keep true; what asks
the driver about nodes is in `nodes`.
"""
