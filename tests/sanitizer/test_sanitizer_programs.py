"""The race detector on whole programs: one missing wait each, and none where it is mended."""

import warnings

import pytest
from child import run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from race_model import CELLS, Model, steps
from race_programs import PROGRAMS, SIZE

import accelrt
from accelrt import sanitizer
from accelrt.driver.registry import Rows

STREAMS = ("one", "two", "three")


@pytest.fixture
def detector():
    sanitizer.enable()
    yield
    sanitizer.disable()
    sanitizer.clear()


def fit(program):
    if program.__name__ == "fill_across_devices" and accelrt.device_count() < 2:
        pytest.skip("it takes two devices")


def run_through(program):
    """The second call tells what was found while the first one waited."""
    program(False)
    accelrt.synchronize()
    accelrt.synchronize()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_missing_wait_is_found(detector, program):
    fit(program)

    with pytest.raises(accelrt.RaceError) as caught:
        run_through(program)
    assert len(sanitizer.reports()) == 1
    report = caught.value.report
    assert report is sanitizer.reports()[0]
    assert all("race_programs.py" in side.line.filename for side in (report.first, report.second)) or (
        program.__name__ == "host_write_under_a_copy"
    )
    for side in (report.first, report.second):
        assert side.timeline.name in str(report)
        assert str(side.line) in str(report)
    assert "missing" in str(report)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_mended_program_is_clean(detector, program):
    fit(program)
    program(True)
    accelrt.synchronize()
    assert not sanitizer.reports()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_told_to_warn_the_program_goes_on(program):
    fit(program)
    sanitizer.enable(raises=False)
    try:
        with pytest.warns(accelrt.RaceWarning, match="race on"):
            run_through(program)
        assert sanitizer.reports()
    finally:
        sanitizer.disable()


class Machine:
    """The model's streams as real ones, with a cell for each sixteen bytes of a buffer."""

    def __init__(self):
        self.streams = {name: accelrt.Stream() for name in STREAMS}
        self.events = [accelrt.Event() for _ in range(3)]
        self.buffer = accelrt.Buffer(16 * CELLS)
        self.other = accelrt.Buffer(16 * CELLS)

    def access(self, who, used):
        (begin, end, writes), stream = used[0], self.streams[who]
        place, size = {"dst_offset" if writes else "src_offset": 16 * begin}, 16 * (end - begin)
        # The far side is written by nobody else: each stream has a buffer of its own there.
        far = accelrt.Buffer(16 * CELLS, stream=stream)
        pair = (self.buffer, far) if writes else (far, self.buffer)
        accelrt.copy(*pair, size, **place, stream=stream, blocking=False)

    def record(self, who, event):
        self.events[event].record(self.streams[who])

    def wait(self, who, event):
        self.streams[who].wait_event(self.events[event])

    def synchronize(self, who):
        self.streams[who].synchronize()

    def synchronize_event(self, event):
        self.events[event].synchronize()

    def synchronize_all(self):
        accelrt.synchronize()


def one_span():
    cells = st.integers(0, CELLS - 1)
    return st.builds(lambda a, b, w: ((min(a, b), max(a, b) + 1, w),), cells, cells, st.booleans())


PROGRAM = steps(STREAMS, st.tuples(st.just("access"), st.sampled_from(STREAMS), one_span()))


@settings(max_examples=100, deadline=None)
@given(st.lists(PROGRAM, max_size=25))
def test_of_random_copies_exactly_those_race_that_no_path_orders(program):
    accelrt.synchronize()
    sanitizer.enable()
    try:
        model, machine = Model(), Machine()
        for name, *arguments in program:
            racing = getattr(model, name)(*arguments)
            expected = name == "access" and bool(racing[1])
            try:
                getattr(machine, name)(*arguments)
                found = False
            except accelrt.RaceError:
                found = True
            assert found == expected, (name, arguments)
        accelrt.synchronize()
    finally:
        sanitizer.disable()


def test_a_fill_that_races_has_not_read_what_it_fills_with(detector):
    one, other = accelrt.Stream(), accelrt.Stream()
    array = accelrt.empty((4, 6), "f8")  # filled by copies of an element in page-locked memory
    array.fill_(1.5, stream=one)
    with pytest.raises(accelrt.RaceError):
        array.fill_(2.5, stream=other)
    accelrt.synchronize()
    accelrt.synchronize()
    assert len(sanitizer.reports()) == 1


def test_what_races_is_not_put_into_its_stream(detector):
    one, other = accelrt.Stream(), accelrt.Stream()
    buffer = accelrt.Buffer(SIZE)
    buffer.fill(1, stream=one)
    with pytest.raises(accelrt.RaceError):
        buffer.fill(2, stream=other)
    accelrt.synchronize()
    data = bytearray(SIZE)
    buffer.copy_to(data)
    assert data == b"\1" * SIZE


def test_a_report_names_the_event_that_was_recorded_too_early(detector):
    one, other = accelrt.Stream(), accelrt.Stream()
    buffer = accelrt.Buffer(SIZE)
    buffer.fill(1, stream=one)
    other.wait_stream(one)
    buffer.fill(2, stream=one)
    with pytest.raises(
        accelrt.RaceError, match=r"only up to an earlier point, the event recorded at .*:\d+ in"
    ):
        buffer.fill(3, stream=other)
    (report,) = sanitizer.reports()
    assert (report.nbytes, report.address) == (SIZE, buffer.ptr)
    assert report.second.line.number > report.first.line.number > report.allocation.line.number


def test_memory_of_others_is_forgotten_when_they_say_so(detector):
    one, other = accelrt.Stream(), accelrt.Stream()
    accelrt.use(1 << 40, 64, one, "w")
    sanitizer.forget(1 << 40, 64)
    accelrt.use(1 << 40, 64, other, "w")
    assert not sanitizer.reports()


def test_a_blocking_stream_and_the_default_stream_wait_for_each_other(detector):
    rows = Rows()
    buffer = accelrt.Buffer(SIZE)
    code, handle = rows.stream_create(0, 0, 0)
    assert code == 0
    blocking = accelrt.ExternalStream(handle)
    default = accelrt.default_stream()
    for stream in (blocking, default, blocking):
        buffer.fill(1, stream=stream)
    assert not sanitizer.reports()
    with pytest.raises(accelrt.RaceError):
        buffer.fill(2, stream=accelrt.Stream())
    accelrt.synchronize()
    buffer.free()
    assert rows.stream_destroy(0, handle) == 0


def test_a_graph_whose_host_function_uses_memory_is_clean(detector):
    stream, array = accelrt.Stream(), accelrt.pinned_empty(SIZE, "uint8")
    buffer, graph = accelrt.Buffer(SIZE), accelrt.CUDAGraph()

    def write():
        array[:] += 1
        accelrt.use(array, stream="host", mode="w")

    array[:] = 0
    with accelrt.graph(graph, stream=stream):
        stream.launch_host_func(write)
        buffer.copy_from(array, stream=stream, blocking=False)
    with accelrt.stream(stream):
        graph.replay()
        graph.replay()
    accelrt.synchronize()
    assert not sanitizer.reports()


def test_at_exit_what_no_call_told_is_told():
    code = (
        "import accelrt\none, other = accelrt.Stream(), accelrt.Stream()\n"
        "pointer = accelrt.caching_allocator_alloc(512, stream=one)\n"
        "accelrt.use(pointer, 512, other, 'w')\naccelrt.caching_allocator_delete(pointer)\n"
    )
    done = run("-c", code, ACCELRT_SANITIZE="1")
    assert done.returncode == 0
    assert "RaceWarning: race on 512 bytes" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1 << 40,), TypeError),
        ((-1, 8), ValueError),
        ((b"abcd", 8), ValueError),
        ((object(),), TypeError),
        ((b"abcd", None, "device"), ValueError),
        ((b"abcd", None, None, "x"), ValueError),
    ],
)
def test_use_names_what_is_wrong(detector, arguments, error):
    with pytest.raises(error):
        accelrt.use(*arguments)


def test_off_it_looks_at_nothing():
    assert not sanitizer.is_enabled()
    accelrt.use(object())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PROGRAMS[0](False)
    accelrt.synchronize()


def run(*arguments, **environment):
    return run_python(*arguments, ACCELRT_DRIVER="host", **environment)


def test_the_demo_has_no_races():
    done = run("-m", "accelrt", "demo", ACCELRT_SANITIZE="1", ACCELRT_DEBUG="1")  # it replays 70,000 blocks
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Race" not in done.stdout + done.stderr


def test_the_environment_turns_it_on_and_names_a_setting_that_it_does_not_know():
    code = "from accelrt import sanitizer; print(sanitizer.is_enabled(), sanitizer.reports())"
    assert run("-c", code, ACCELRT_SANITIZE="1").stdout == "True []\n"
    assert run("-c", code, ACCELRT_SANITIZE="0").stdout == "False []\n"
    refused = run("-c", code, ACCELRT_SANITIZE="maybe")
    assert "ACCELRT_SANITIZE='maybe' is not known" in refused.stderr
