"""Devices and what is known of them.

device      how many, which one is current, what a caller may call one, and what one is
properties  the constants of a device, and reading them from the driver
attributes  the names of attributes, and which of them a driver knows
sm_resources  what a device or a green context has for kernels to run on
contexts    which devices the process has contexts on, and which of them it was not meant to use
context_limits  limits of a device's context: stacks, printf, the persisting L2 cache
versions    versions of the driver and of what accelrt stands on
discovery   how many devices there are, before a driver is open
"""
