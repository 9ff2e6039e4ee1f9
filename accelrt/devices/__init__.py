"""Devices and what is known of them.

device        how many, which one is current, and what a caller may call one
properties    name, compute capability, memory and attributes as users read them
device_facts  the constants of a device, read from the driver once
attributes    the names of attributes, and which of them a driver knows
arch          what kernels can be compiled for
versions      versions of the driver and of what accelrt stands on
discovery/    how many devices there are, before a driver is open
"""
