"""Random numbers on devices, with torch.cuda.random's names; a seed gives torch's bits.

generator      Generator
launches       kernels, grids and the parts of large arrays
philox_source  the kernels' text
philox_text    the pieces of C++ that it is made of
host_math      C++ for what CUDA's mathematical functions compute
seeds          seeds, offsets and states, as users give them
graph_states   seeds and offsets in graphs
defaults       the devices' default generators, and functions of them
"""

from accelrt.random import defaults
from accelrt.random.defaults import *
from accelrt.random.generator import Generator

__all__ = ["Generator", *defaults.__all__]
