"""Streams and events, and the pools that they come from.

stream       streams, the driver's own and other libraries'
current      which stream is current on each thread, and contexts in which one is
steps        coroutines and generators whose steps run with a stream current
stream_pool  driver streams that were returned, for Python and nogil code
access_policy  how a stream's work uses the L2 cache for a range of memory
event        events: points in a stream's work; driver events that were returned, for Python and nogil code
"""
