"""The seam between accelrt and a device: one table of function pointers, and two drivers that fill it.

table          the contract: the struct, a row a function
registry       the active table, and which driver this process runs on
rowgen         reads table.pxd and writes the rows that only forward
rows           every row as a Python method, for tests and benchmarks
faults         a table that wraps another and makes a chosen call fail, for tests
capture_guard  keeps captures and waits for a device apart; a thread's capture mode
waiting        waits that a signal may end
cuda/          the table filled by NVIDIA's driver
host/          the table filled by an emulation on the CPU
"""
