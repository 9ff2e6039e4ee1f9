"""What rowgen.py refuses to derive: mistakes in what a row passes that no compiler would see."""

import pytest

from accelrt.driver import rowgen

ROWS = rowgen.read_rows()
TYPE = "ctypedef int (*PFN_{}_v1)({}) noexcept nogil  # {}\n"


def cuda_rows(function, parameters, note):
    return rowgen.fill_cuda("", {"functions": TYPE.format(function, parameters, note)}, "", ROWS)


def test_a_row_of_one_call_casts_what_has_another_type_and_answers_0_where_it_is_refused():
    text = cuda_rows("cuStreamCreate", "CUstream*, unsigned int", "stream_create(out_stream, flags)")
    assert "code = cuStreamCreate(&new_out_stream, flags)" in text
    answer = "if code == SUCCESS:\n        out_stream[0] = <uintptr_t>new_out_stream"
    assert text.index("out_stream[0] = 0\n") < text.index(answer)


@pytest.mark.parametrize(
    ("parameters", "note"),
    [
        ("CUevent, CUstream", "event_record(stream, event)"),
        ("CUdeviceptr, CUstream", "async_free(stream, address)"),
        ("CUstream*, unsigned int, int", "stream_create(flags, out_stream, priority)"),
        ("CUgraphExec, CUstream", "graph_launch(exec_)"),
    ],
)
def test_a_row_that_passes_a_handle_for_another_or_too_little_is_refused(parameters, note):
    with pytest.raises(ValueError, match=r"passes|longer"):
        cuda_rows("cuAnything", parameters, note)


def test_a_function_that_is_left_of_no_row_is_refused():
    with pytest.raises(KeyError, match="stream_queri"):
        rowgen.fill_host("stream", "cdef int stream_queri_locked(HostStream* stream) noexcept nogil:\n", ROWS)


def test_a_handle_is_looked_up_under_the_lock_alone():
    body = "cdef int stream_query_{}(HostStream* stream) noexcept nogil:\n"
    text = rowgen.fill_host("stream", body.format("locked"), ROWS)
    assert (
        text.index("    lock()")
        < text.index("stream_ = find_stream(device, stream)")
        < text.index("unlock()")
    )
    with pytest.raises(ValueError, match="stream_query_gated takes stream without the lock"):
        rowgen.fill_host("stream", body.format("gated"), ROWS)
