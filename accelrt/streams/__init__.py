"""Streams and events, and the pools that they come from.

stream          streams, and which one is current on each thread
stream_context  contexts in which a stream is current, and its device
steps           coroutines and generators whose steps run with a stream current
stream_pool     the pool of driver streams, under the GIL
nogil_streams   driver streams and events that nogil code leases and returns
event           events: points in a stream's work
"""
