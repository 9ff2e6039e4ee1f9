"""The driver table filled by NVIDIA's driver.

driver   puts the table together; open and close
types    what the rows name of cuda.h
context  the library; primary contexts, made current for one call; devices; waits that a signal may end
memory   plain, virtual, stream-ordered and page-locked memory
stream   streams, events, copies and fills
graph    captures, graphs, conditional nodes and sharing between processes
kernel   modules, functions, launches and kernel nodes
"""
