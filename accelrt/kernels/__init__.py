"""Kernels: loaded, launched and captured.

module      Module; host kernels
kernel      Kernel and its launches
packing     arguments, as a kernel's parameters take them
signature   what a signature says of the parameters
limits      why a driver refuses a launch
sleep       sleep
"""
