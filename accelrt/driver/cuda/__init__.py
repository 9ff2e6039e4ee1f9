"""The driver table filled by NVIDIA's driver.

driver     the rows: devices and primary contexts, memory, streams and events, copies, captures and graphs,
           modules and launches, waits that a signal may end; what brings the library up
functions  the functions of libcuda that the rows call
types      what the rows name of cuda.h
"""
