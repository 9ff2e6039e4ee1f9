"""Streams and events, and the pools that they come from.

stream         streams, the driver's own and other libraries'; which one is current on each thread; events:
               points in a stream's work
stream_pool    driver streams that were returned, and driver events, for Python and nogil code
steps          coroutines and generators whose steps run with a stream current
access_policy  how a stream's work uses the L2 cache for a range of memory
"""
