"""The driver table filled by NVIDIA's driver.

driver       puts the table together; open and close
library      brings the library up, and finds the functions that the rows call
types        what the rows name of cuda.h
context      primary contexts, made current for one call; the rows of devices
memory       plain, virtual, stream-ordered and page-locked memory
stream       streams, events, copies and fills
graph        captures, graphs, kernels and sharing between processes
conditional  conditional nodes
waits        the rows that wait, where the main thread has to look for signals meanwhile
"""
