"""The driver table filled by an emulation on the CPU, which refuses what a GPU refuses.

ranges   one sparse memory file a device, mapped where it is asked for; the addresses that are in use
shared_event  an event's state that several processes map, and the names of their files
frontier what a captured event, or the next work of a capturing stream, comes after
queue    streams as queues, each served by a thread while it has work; the lock of all of them; the crew of
         threads that share a kernel's blocks with the one that serves its stream
stream   the rows of streams, events, copies, fills and host functions; whether a row may do its work;
         captures, and graphs as lists of nodes
memory   the rows of plain, page-locked and virtual memory, and of what other processes made
driver   puts the table together; the rows of devices, of modules, functions and launches (C functions that
         are called for each block), and of captures and graphs with their kernel nodes
"""
