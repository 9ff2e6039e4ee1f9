"""The door that every use of memory goes through on its way to the driver; DESIGN.md says in which order.

access  uses under way, and what waits for their end; the memory that other libraries have by DLPack; sync
        debug mode, and the calls that report to the race detector
events  below the allocator: that a stream uses bytes, the pool of driver events, and queues of them
"""
