"""KeyboardInterrupt at each look for signals of each public operation, also of compiled code that waits.

The operations are those of public_operations.py.  After each nothing is current that was not, no lock is held
and the audits find nothing.  The suite interrupts each operation at some looks, the mark full_sweep at all.
"""

import gc
import signal
import sys

import pytest
from beside import on_a_thread
from child import in_child
from compiled import compile_extension
from every_bytecode import pass_over_interruptions
from public_operations import Scene, operations

import accelrt
from accelrt.testing import live_objects

pytestmark = [pytest.mark.host, pytest.mark.own_process]
PARTS = 2
FEW = 2  # looks of an operation that the suite chooses
# What these answer is a number, which an interruption loses.
RAW = {"caching_allocator_alloc", "caching_host_allocator_alloc"}


def state():
    streams = [accelrt.current_stream(ordinal) for ordinal in range(accelrt.device_count())]
    return accelrt.current_device(), streams, accelrt.is_current_stream_capturing()


def use_a_device():
    """Takes the locks that an operation could have left taken."""
    accelrt.Buffer(4096).fill(1)
    accelrt.PinnedBuffer(4096).free()
    accelrt.Stream().synchronize()


def interrupt_at(looks, operation, number):
    """Calls an operation, interrupted at the look with a number; how many there were, and what it raised."""
    scene, raised = Scene(), None
    scene.prepare(operation.needs)
    before = state()
    try:
        try:
            looks.begin(number)
            operation.call(scene)
        finally:
            looks.end()
    except (Exception, KeyboardInterrupt) as error:
        raised = type(error)
    count = looks.end()
    assert state() == before
    on_a_thread(use_a_device, timeout=300)
    scene.end()
    accelrt.memory.audit()
    accelrt.memory.host_audit()
    return count, raised


def left():
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    counts = live_objects()
    return [counts[kind] for kind in ("allocations", "bytes", "graphs", "execs", "arrays", "textures")]


def interrupt_all(folder, part, few):
    sys.path.insert(0, folder)
    import signal_looks

    signal.signal(signal.SIGINT, signal_looks.handle)
    sys.unraisablehook = pass_over_interruptions(sys.unraisablehook)
    tried = 0
    for operation in operations()[part::PARTS]:
        if any(operation.name.startswith(name) for name in RAW):
            continue
        interrupt_at(signal_looks, operation, 0)
        before = left()
        count, refusal = interrupt_at(signal_looks, operation, 0)
        step = max(1, count // few) if few else 1
        for number in range(1 + step // 2, count + 1, step):
            try:
                _, raised = interrupt_at(signal_looks, operation, number)
                assert raised in (None, KeyboardInterrupt, refusal)
            except BaseException as error:
                error.add_note(f"{operation} interrupted at look {number} of {count}")
                raise
            tried += 1
        assert left() == before, operation
    print(tried)


def try_part(tmp_path, part, few):
    compile_extension("signal_looks", tmp_path)
    printed = in_child(interrupt_all, str(tmp_path), part, few, ACCELRT_HOST_DEVICES="2")
    return int(printed.splitlines()[-1])  # behind warnings of old names


@pytest.mark.parametrize("part", range(PARTS))
def test_interrupted_operations_leave_nothing(tmp_path, part):
    assert try_part(tmp_path, part, FEW) > 250


@pytest.mark.full_sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_interrupted_operations_leave_nothing_at_any_look(tmp_path, part):
    assert try_part(tmp_path, part, None) > 2000
