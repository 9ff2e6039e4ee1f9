# NVIDIA's driver behind the driver table; reached through the registry, never by cimport.
