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

from accelrt.tunable.offline import tune_gemm_in_file, tune_in_file
from accelrt.tunable.operation import Operation
from accelrt.tunable.results import (
    Result,
    get_filename,
    get_results,
    get_validators,
    read_file,
    register_validator,
    set_filename,
    write_file,
    write_file_on_exit,
)
from accelrt.tunable.switches import (
    enable,
    get_max_tuning_duration,
    get_max_tuning_iterations,
    get_max_warmup_duration,
    get_max_warmup_iterations,
    get_rotating_buffer_size,
    is_enabled,
    l2_flush_enable,
    l2_flush_is_enabled,
    record_untuned_enable,
    record_untuned_is_enabled,
    set_max_tuning_duration,
    set_max_tuning_iterations,
    set_max_warmup_duration,
    set_max_warmup_iterations,
    set_numerical_check_tolerances,
    set_rotating_buffer_size,
    tuning_enable,
    tuning_is_enabled,
)

__all__ = [
    "Operation",
    "Result",
    "enable",
    "get_filename",
    "get_max_tuning_duration",
    "get_max_tuning_iterations",
    "get_max_warmup_duration",
    "get_max_warmup_iterations",
    "get_results",
    "get_rotating_buffer_size",
    "get_validators",
    "is_enabled",
    "l2_flush_enable",
    "l2_flush_is_enabled",
    "read_file",
    "record_untuned_enable",
    "record_untuned_is_enabled",
    "register_validator",
    "set_filename",
    "set_max_tuning_duration",
    "set_max_tuning_iterations",
    "set_max_warmup_duration",
    "set_max_warmup_iterations",
    "set_numerical_check_tolerances",
    "set_rotating_buffer_size",
    "tune_gemm_in_file",
    "tune_in_file",
    "tuning_enable",
    "tuning_is_enabled",
    "write_file",
    "write_file_on_exit",
]
