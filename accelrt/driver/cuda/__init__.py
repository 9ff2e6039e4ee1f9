"""The driver table filled by NVIDIA's driver.

driver           what brings the library up; the rows of modules and launches, of captures and graphs, and
                 waits that a signal may end
memory           devices, and their primary contexts made current for one call; the rows of devices, memory,
                 streams and copies
functions        the functions of libcuda that the rows call
graph_functions  the same of captures, graphs and their nodes
types            what the rows name of cuda.h
"""
