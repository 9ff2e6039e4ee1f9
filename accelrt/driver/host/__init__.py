"""The driver table filled by an emulation on the CPU, which refuses what a GPU refuses.

driver   puts the table together; the rows of devices
memory   one sparse memory file a device, mapped where it is asked for; reservations and physical handles
queue    streams as queues, each served by a thread while it has work; the lock of all of them
crew     threads that share a kernel's blocks with the one that serves its stream
stream   the rows of streams, events, copies, fills and host functions
shared_event  an event's state that several processes map, and the names of their files
ipc      the rows between processes
capture  captures, and graphs as lists of nodes
graph    the rows of captures and graphs, and of kernel nodes
kernel   the rows of modules, functions and launches: C functions that are called for each block

`stream` is one long file since all of its rows do the same: look a stream up, and record in its capture or
enqueue.
"""
