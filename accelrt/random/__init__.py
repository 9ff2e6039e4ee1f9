"""Random numbers on devices, with torch.cuda.random's names; a seed gives torch's bits.

generator      Generator
launches       kernels, grids and the parts of large arrays
philox_source  the kernels' text
philox_text    the pieces of C that it is made of
host_math      C for what CUDA's mathematical functions compute
seeds          seeds, offsets and states, as users give them
state          a seed and an offset
graph_states   seeds and offsets in graphs
defaults       the devices' default generators, and functions of them
"""

from accelrt.random.defaults import (
    _get_rng_state_offset,
    _set_rng_state_offset,
    default_generators,
    fork_rng,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from accelrt.random.generator import Generator

__all__ = [
    "Generator",
    "_get_rng_state_offset",
    "_set_rng_state_offset",
    "default_generators",
    "fork_rng",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]
