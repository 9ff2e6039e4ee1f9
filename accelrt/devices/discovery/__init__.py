"""How many devices there are, asked without initialising a driver.

counting      the count: from the kernel's list, NVML, or the driver in another process
driver_probe  the driver, asked in a process of its own
"""
