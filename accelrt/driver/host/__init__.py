"""The driver table filled by an emulation on the CPU, which refuses what a GPU refuses.

work     what queues, captures and graphs are made of: work, tickets, nodes, plans, streams, events
machine  what is below the rows: one sparse memory file a device, mapped where it is asked for, and the
         addresses that are in use; the files and events that several processes share; streams as queues,
         each served by a thread while it has work, and the lock of all of them; the crew of threads that
         share a kernel's blocks with the one that serves its stream
stream   the rows of streams, events, copies, fills and host functions; whether a row may do its work;
         launches; captures, and what they add to a graph
memory   the rows of plain, page-locked and virtual memory, of memory of graphs, and of what other
         processes made; of CUDA arrays and textures
pools    what stream-ordered pools are made of
textures  what these are, and which ones there may be
graphs   the rows of captures and graphs: nodes and edges, instances and launches, conditions
driver   puts the table together; the rows of devices, of stream-ordered pools, and of modules, functions and
         launches (C functions that are called for each block)
"""
