"""What every other package builds on; nothing here knows of CUDA.

dtypes      the types of elements, one row each
env_watch   whether the variables that say which devices there are changed since init
handle_map  a hash table from addresses or handles to records
integers    what callers may pass as a number
locks       pthread's mutexes; spin locks of one word; counters and pointers that several threads share
names       the public names, and the module that each is of
owners      file descriptors and handles with an owner from the first moment on
process     what happens in a fork and at the end of the process, in one order each (DESIGN.md)
procfs      the cards that NVIDIA's kernel driver lists in /proc
slots       sections that are passed in nanoseconds, and a wait until all who were inside have left
threads     the clock, pauses, conditions, and starting a thread
zero_pages  zeroed memory whose pages cost nothing before they are written to
"""
