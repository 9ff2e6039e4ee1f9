"""Tunable operations: of several ways to do a thing the fastest; torch.cuda.tunable's names.

    scale = accelrt.tunable.Operation("scale", plain)         # plain(out, x) is the default
    scale.candidate("blocks_of_256", blocks_of_256)           # does the same in another way
    accelrt.tunable.enable()
    scale(out, x)                                             # the first call for such arguments times both

What is found is kept in a file of torch's format, and later processes begin with it.  Off, which is how it
starts, an operation is its default.

switches      what is on, and how long and how candidates are timed; the environment's variables
operation     Operation: the candidates, and which of them a call runs
arguments     copies of arguments, their names in a file, and whether two results are the same
timing        how candidates are timed, and the fastest
results       what is known, by device model, and the validators
results_file  files of results, which threads and processes share, and of what was not tuned
offline       tuning what such a file names
"""

from accelrt.tunable import offline, operation, results, switches
from accelrt.tunable.offline import *
from accelrt.tunable.operation import *
from accelrt.tunable.results import *
from accelrt.tunable.switches import *

__all__ = [name for module in (offline, operation, results, switches) for name in module.__all__]
