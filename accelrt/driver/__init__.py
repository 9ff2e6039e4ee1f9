"""The seam between accelrt and a device: one table of function pointers, and two drivers that fill it.

table          the contract: the struct, a row a function
memory         what rows of memory and of copies take and answer
managed        the same of managed memory
textures       the same of CUDA arrays, textures and surfaces
node_params    what nodes of graphs do, in neutral types, as rows take it
registry       the active table, and which driver this process runs on; rows as Python methods
testing        for accelrt.testing alone: a table of which a chosen call fails, or in which a thread stops
rowgen         writes the rows that only forward, and what the drivers' modules fill
guard          the gate between captures and waits for a device; waits that a signal may end; that streams use
               memory until an event (USES.md)
cuda/          the table filled by NVIDIA's driver
host/          the table filled by an emulation on the CPU
"""
