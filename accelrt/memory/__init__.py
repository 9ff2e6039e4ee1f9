"""The face of the allocator: accelrt.memory.memory_stats() and the rest of torch.cuda.memory's names.

caching          raw pointers of device memory; limits; which backend the process chose; functions that are
                 asked for memory; memory_stats, peaks, snapshot, audit
mempool          MemPool and use_mem_pool; sleep and wake; page-locked memory: the cache's raw pointers and
                 figures, PinnedMemPool, memory of the user's own that is registered
sleep_result     SleepResult, what a sleep or a wake answers
reservation      addresses that are given memory page by page: reserve, Reservation
pool_checkpoint  the state of a pool, kept and restored
addresses        address_info: what an address is
driver_pool      DriverPool: the driver's own pools, of devices and of page-locked memory, and those made here
ipc_handles      what processes send each other of these
live             OutOfMemoryError, and the functions that are told of it; ACCELRT_LEAKS: what is still live at
                 the end
explain          why a request was refused and what helps, found in those fields; the text that says so
notices          what operators are told of memory, through logging
holders          which objects have memory, and who holds them
live_blocks      the live blocks of a device, with their stacks and tags
growth           mark: what memory grew by since a moment, or from one snapshot to the next
live_report      report: what holds a device's memory now
summary_table    memory_summary, as torch's
torch_names      figures as nested dicts, and torch's deprecated names
history/         what happened to memory: events, stacks, tags; snapshots

A public name is found in its module when it is asked for.  DESIGN.md says how all of it works,
together with the allocator's own pages.
"""

import sys

from accelrt.core import names
from accelrt.runtime import init

_modules = names.module_of(names.MEMORY)
_underscored = names.module_of(names.UNDERSCORED_MEMORY)
__all__ = sorted(_modules)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    module = _modules.get(name) or _underscored.get(name)
    if module is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    return getattr(init.later(f"accelrt.{module}"), name)
