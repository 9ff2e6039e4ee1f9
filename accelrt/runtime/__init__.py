"""Initialisation, and what accelrt does behind the user's calls.

init             initialisation at first use
release_queue    driver objects destroyed now, or once it is safe
host_func        Python functions in a stream's order
capture_record   captures under way: what their graphs have to keep alive, and what broke them
cuda_runtime     the calls of the CUDA runtime that torch.cuda.cudart() offers
error_texts      what the CUDA runtime says of its errors
cuda_status      cudart() itself, check_error, and when the driver loads kernels
sanitizer_hooks  sync debug mode, and the calls that report to the race detector
"""
