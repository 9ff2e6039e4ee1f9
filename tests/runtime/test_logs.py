"""What operators are told through Python's logging: which events, at which level, and nothing unasked."""

import logging
import sys

import pytest
from child import in_own_process, run_code, wrap_host

import accelrt

pytestmark = pytest.mark.own_process
MIB = 1 << 20
CAP_REACHED = -3


class Kept(logging.Handler):
    """Keeps what is logged: (logger, level, event) and the records."""

    def __init__(self):
        super().__init__()
        self.records = []
        logging.getLogger("accelrt").addHandler(self)
        logging.getLogger("accelrt").setLevel(logging.DEBUG)

    def emit(self, record):
        self.records.append(record)

    def events(self):
        return [each.accelrt["event"] for each in self.records]

    def take(self):
        found, self.records = self.records, []
        return found


def limit(nbytes):
    accelrt.set_per_process_memory_fraction(nbytes / accelrt.mem_get_info()[1], 0)


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_a_retry_is_a_warning_with_what_went_back():
    kept = Kept()
    limit(64 * MIB)
    accelrt.Buffer(40 * MIB).free()
    accelrt.Buffer(50 * MIB).free()  # the idle segment goes back first
    (record,) = kept.take()
    assert (record.name, record.levelname) == ("accelrt.memory", "WARNING")
    assert record.accelrt == {
        **{"event": "retry", "device": 0, "requested": 50 * MIB, "retries": 1},
        **{"segments": 1, "bytes": 40 * MIB},
    }
    assert record.getMessage() == (
        "device 0 had no memory for 1 request, tried again; 1 segment of 40.00 MiB went back to the device"
    )


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_out_of_memory_is_an_error_with_its_explanation():
    kept = Kept()
    limit(64 * MIB)
    with pytest.raises(accelrt.OutOfMemoryError) as raised:
        accelrt.Buffer(100 * MIB)
    found = {record.accelrt["event"]: record for record in kept.take()}
    record = found["out_of_memory"]
    assert (record.name, record.levelname) == ("accelrt.memory", "ERROR")
    assert record.getMessage() == str(raised.value)
    assert record.accelrt["requested"] == 100 * MIB
    assert record.accelrt["causes"] == raised.value.causes
    assert found.keys() <= {"out_of_memory", "retry"}


@in_own_process
def test_a_request_that_nothing_has_is_told_once():
    kept = Kept()
    accelrt.Buffer(64)
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.caching_allocator_alloc(1 << 50)
    assert kept.events().count("out_of_memory") == 1


@in_own_process
def test_page_locked_memory_that_is_refused_is_told():
    faults, kept = wrap_host(), Kept()
    faults.arm(call=1, code=2, mode="onward", rows=["host_alloc", "host_register"])
    with pytest.raises(accelrt.OutOfMemoryError) as raised:
        accelrt.PinnedBuffer(64 * MIB)
    faults.disarm()
    (record,) = kept.take()
    assert record.getMessage() == str(raised.value)
    assert record.accelrt["device"] is None


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False,garbage_collection_threshold:0.5")
def test_segments_that_go_back_without_a_refusal_are_told():
    kept = Kept()
    limit(64 * MIB)
    accelrt.Buffer(40 * MIB).free()
    buffer = accelrt.Buffer(20 * MIB, stream=accelrt.Stream())
    (record,) = kept.take()
    assert (record.levelname, record.accelrt["event"]) == ("INFO", "segments_released")
    assert record.accelrt["bytes"] == 40 * MIB
    buffer.free()
    accelrt.empty_cache()
    (record,) = kept.take()
    assert (record.levelname, record.accelrt["event"]) == ("DEBUG", "segments_released")
    assert "by empty_cache()" in record.getMessage()


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_what_nogil_code_met_is_told_by_the_next_that_comes_by():
    import ctypes

    library = ctypes.CDLL(accelrt.get_library())  # without the GIL
    kept, address = Kept(), ctypes.c_size_t()
    limit(64 * MIB)
    accelrt.Buffer(40 * MIB).free()
    arguments = (0, ctypes.c_size_t(100 * MIB), ctypes.c_size_t(0), ctypes.byref(address))
    assert library.accelrt_allocate(*arguments) == CAP_REACHED
    assert kept.take() == []
    accelrt.Buffer(3 * MIB).free()  # a miss, in Python
    found = {record.accelrt["event"]: record for record in kept.take()}
    assert found["out_of_memory"].accelrt["refusals"] == 1
    assert "refused 1 request of code without Python" in found["out_of_memory"].getMessage()
    assert found["retry"].accelrt["retries"] == 1
    accelrt.Buffer(5 * MIB).free()
    assert kept.take() == []


@in_own_process
def test_a_lost_device_is_told_once():
    faults, kept = wrap_host(), Kept()
    stream = accelrt.Stream()
    accelrt.Buffer(64).fill(0, stream=stream)
    faults.arm(call=1, code=700, mode="onward", rows=["stream_synchronize"])
    for _ in range(3):
        with pytest.raises(accelrt.CudaError):
            stream.synchronize()
    faults.disarm()
    (record,) = kept.take()
    assert (record.name, record.levelname) == ("accelrt.device", "CRITICAL")
    assert (record.accelrt["event"], record.accelrt["status"]) == ("device_lost", "ILLEGAL_ADDRESS")


@in_own_process
def test_what_a_handler_does_is_not_told_to_it_again():
    limit(64 * MIB)

    class Allocating(Kept):
        def emit(self, record):
            super().emit(record)
            with pytest.raises(accelrt.OutOfMemoryError):
                accelrt.Buffer(100 * MIB)

    kept = Allocating()
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(90 * MIB)
    assert kept.events().count("out_of_memory") == 1


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_an_interruption_in_a_handler_loses_no_memory():
    limit(64 * MIB)
    accelrt.Buffer(40 * MIB).free()

    class Interrupting(Kept):
        def emit(self, record):
            raise KeyboardInterrupt

    kept = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        accelrt.Buffer(50 * MIB)
    assert accelrt.memory_allocated() == 0
    accelrt.Buffer(90 * MIB // 2).free()
    logging.getLogger("accelrt").removeHandler(kept)


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_an_error_of_a_filter_is_reported_and_stops_nothing():
    limit(64 * MIB)
    accelrt.Buffer(40 * MIB).free()
    logger, reported = logging.getLogger("accelrt.memory"), []

    def refuse(record):
        raise ZeroDivisionError

    logger.addFilter(refuse)
    sys.unraisablehook = lambda unraisable: reported.append(unraisable.exc_type)
    accelrt.Buffer(50 * MIB).free()
    sys.unraisablehook = sys.__unraisablehook__
    assert reported == [ZeroDivisionError]


def test_without_logging_nothing_of_it_is_imported_and_nothing_is_said():
    out = run_code(
        "import os\nos.dup2(1, 2)\nimport sys, accelrt\n"
        "accelrt.set_per_process_memory_fraction(0.01)\n"
        "try:\n    accelrt.Buffer(512 << 20)\nexcept accelrt.OutOfMemoryError:\n    pass\n"
        "accelrt.Buffer(4 << 20).free()\naccelrt.empty_cache()\nkept = accelrt.Buffer(64)\n"
        "print('logging' in sys.modules, 'accelrt.core.logs' in sys.modules)\n",
        ACCELRT_DRIVER="host",
    )
    assert out == "False False\n"


def test_a_program_that_set_no_handler_sees_nothing_on_stderr():
    out = run_code(
        "import os\nos.dup2(1, 2)\nimport logging, accelrt\n"
        "try:\n    accelrt.Buffer(1 << 50)\nexcept accelrt.OutOfMemoryError:\n    print('refused')\n",
        ACCELRT_DRIVER="host",
    )
    assert out == "refused\n"


def test_what_is_live_at_the_end_is_told_while_the_log_is_open():
    out = run_code(
        "import sys, logging, accelrt\n"
        "form = '%(name)s %(levelname)s %(message)s'\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format=form)\n"
        "kept = accelrt.Buffer(3 << 20)\n",
        ACCELRT_DRIVER="host",
    )
    assert out == (
        "accelrt.memory INFO 3.00 MiB of device 0 are live where the process ends; "
        "ACCELRT_LEAKS=1 lists them\n"
    )
