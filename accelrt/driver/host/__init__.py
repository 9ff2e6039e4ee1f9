"""The driver table filled by an emulation on the CPU, which refuses what a GPU refuses.

work     what queues, captures and graphs are made of: work, tickets, nodes, plans, streams, events
machine  what is below the rows: one sparse memory file a device, mapped where it is asked for, and the
         addresses that are in use; the files and events that several processes share; streams as queues,
         each served by a thread while it has work, and the lock of all of them; the crew of threads that
         share a kernel's blocks with the one that serves its stream
stream   the rows of streams, events, copies, fills and host functions; whether a row may do its work;
         captures, and graphs as lists of nodes
memory   the rows of plain, page-locked and virtual memory, and of what other processes made
driver   puts the table together; the rows of devices, of modules, functions and launches (C functions that
         are called for each block), and of captures and graphs with their kernel nodes
"""
