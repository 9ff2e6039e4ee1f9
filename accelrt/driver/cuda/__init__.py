"""The driver table filled by NVIDIA's driver.

driver     the rows: devices, memory, streams and events, copies, modules and launches, waits that a signal
           may end; what brings the library up
graphs     the rows of captures and graphs, conditional nodes and kernel nodes
context    devices, and their primary contexts made current for one call
functions  the functions of libcuda that the rows call
types      what the rows name of cuda.h
"""
