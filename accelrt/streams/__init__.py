"""Streams and events; the pools that they come from are in runtime/lifetimes.

stream         streams, the driver's own and other libraries'; which one is current on each thread; events:
               points in a stream's work
steps          coroutines and generators whose steps run with a stream current
access_policy  how a stream's work uses the L2 cache for a range of memory
host_parts     green contexts of the host device, by the driver's functions that make them
attributes     its other attributes: priority, memory synchronisation domains, how a thread waits for it
"""
