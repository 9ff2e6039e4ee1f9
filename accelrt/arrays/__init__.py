"""Arrays: memory with a shape, a type and strides; no arithmetic beyond fill and copy.

layout      shapes and strides as numbers: contiguity, reshaping, bounds
array       Array and its views
create      arrays with memory of their own
"""
