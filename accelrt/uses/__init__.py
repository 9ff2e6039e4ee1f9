"""The uses of memory by streams: the record that a stream uses bytes, and the driver's events that tell when
it is over.

events  the record, the pool of driver events, and queues of them; below all that keeps memory

The door that every use of memory goes through is above the allocator, in `runtime/access.pyx`; DESIGN.md says
in which order.
"""
