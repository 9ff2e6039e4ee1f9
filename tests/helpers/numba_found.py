"""Whether numba-cuda can compile kernels: releases of before NumPy 2.5 import what that removed."""

import importlib


def compiles():
    try:
        importlib.import_module("numba.cuda.cudaimpl")
    except (ImportError, AttributeError):
        return False
    return True
