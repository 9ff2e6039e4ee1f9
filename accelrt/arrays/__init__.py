"""Arrays: memory with a shape, a type and strides; no arithmetic beyond fill and copy.

layout      shapes and strides as numbers: contiguity, reshaping, bounds
array       Array and its views
strided     copies and fills of any strides
dlpack      DLPack both ways, and its exchange API; dlpack_abi has its structures
foreign     memory of others as Arrays
create      arrays with memory of their own; what an Array's methods copy with
"""
