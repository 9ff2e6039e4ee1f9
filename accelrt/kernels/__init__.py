"""Kernels: compiled, loaded, launched and captured.

kernel              Module; Kernel, its arguments and its launches; host kernels; sleep
attributes          KernelAttributes, the figures of a kernel, and what is set of it
occupancy           how much of a kernel a device runs at a time
tensor_map          descriptors of arrays for the tensor memory accelerator, passed by value
signature           what a signature says of the parameters
limits              why a driver refuses a launch
compiler            compile, compile_image and link_images
image               ModuleImage; the names of architectures
elf_image           whether a shared object is whole
arch                what kernels can be compiled for
nvrtc, jitlink      the calls of NVRTC and nvJitLink
known_compiler      which NVRTC there is, without loading it
host_compiler       the C++ compiler, for kernels of the host device
host_cuda           CUDA C++ for the host device; its headers are in cuda_on_host/
foreign             functions that other libraries loaded, for Kernel.from_handle
host_functions      what functions of host_kernel take, and calls of plain ones
build_process       a compiler's run, of which nothing stays
apart               calls that no signal's exception interrupts
cache               what was compiled, kept in memory and in files
includes            which files a source may include, for the cache's keys
diagnostics         a compiler's messages with the source's lines; why a module is refused
elementwise         elementwise kernels and their calls
elementwise_plan    what is decided for the types, shapes and strides of a call
elementwise_source  their text
elementwise_layout  their shapes and strides
conversion          Arrays converted to another dtype
"""
