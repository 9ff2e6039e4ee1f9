"""Initialisation, and what accelrt does behind the user's calls.

init             initialisation at first use
access           the door for uses of memory: uses under way, what waits for their end, and exports by DLPack;
                 sync debug mode, and the calls that report to the race detector
lifetimes        what has to outlive work: records of captures under way, host functions, and driver objects
                 that are destroyed once it is safe; the pools that driver streams and events return to
cuda_bindings    functions of NVIDIA's driver that are called by way of cuda.bindings
cuda_runtime     the calls of the CUDA runtime that torch.cuda.cudart() offers
error_texts      what the CUDA runtime says of its errors
cuda_status      cudart() itself, check_error, and when the driver loads kernels
"""
