"""Where the driver refuses a copy of rows, the error says so, nothing is left, and the next one works."""

import gc

import numpy as np
import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.testing import failing_calls

pytestmark = pytest.mark.host


@in_own_process
def test_every_refusal_is_told_and_leaves_nothing():
    faults = wrap_host()
    model = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)

    def work():
        array = accelrt.asarray(model)
        turned = accelrt.empty((6, 5, 4), "i4").copy_(array.T)
        turned[::2].copy_(turned[1::2])
        turned[..., 1].fill_(7)
        out = np.zeros((5, 6, 4), np.int32)[::-1]
        accelrt.asarray(out, device="cpu").copy_(turned.permute(1, 0, 2))
        return out

    expected = work()

    def check():
        assert (work() == expected).all()

    faults.reset_call_counts()
    work()
    called = [row for row, calls in faults.call_counts().items() if calls]
    assert {"copy_3d", "copy_async"} <= set(called)
    raised = 0
    for row in called:
        for call, error in failing_calls(check, rows=[row]):
            if error is not None:
                assert error.code == 999, error
                assert error.call == row or row not in ("copy_3d", "fill"), error
                raised += 1
            gc.collect()
            accelrt.synchronize()
            accelrt.host_empty_cache()
            held = accelrt.memory_allocated(), accelrt.host_memory_stats()["allocated_bytes.current"]
            assert held == (0, 0), (row, call, held)
            accelrt.memory.audit()
        check()
    assert raised > 10, raised


@in_own_process
def test_copies_take_as_few_calls_as_their_strides_allow():
    faults = wrap_host()

    array, other = accelrt.zeros((8, 16, 32), "i4"), accelrt.zeros((8, 16, 32), "i4")
    cases = {
        "whole": (array, other, 1, 0),
        "whole, permuted alike": (array.T, other.T, 1, 0),
        "whole, both reversed": (array[::-1], other[::-1], 1, 0),
        "columns": (array[0, :, 3:9], other[0, :, 4:10], 0, 1),
        "slices of rows": (array[:, :5, 3:9], other[:, 6:11, 4:10], 0, 1),
        "single elements": (array[..., ::2], other[..., 1::2], 0, 1),
        "a transpose": (array[0, :, :16], other[0, :, :16].T, 0, 16),
        "a transpose of few columns": (array[0, :, :3], other[0, :3, :16].T, 0, 3),
        "one side reversed": (array[:, 0, 0], other[::-1, 0, 0], 8, 0),
        "a row, again and again": (array, other[0, 0], 1 + 7, 0),
        "a column, again and again": (array[0], other[0, :, :1], 0, 1 + 5),
    }
    for name, (dst, src, copies, pitched) in cases.items():
        faults.reset_call_counts()
        dst.copy_(src)
        counts = faults.call_counts()
        assert (counts["copy_async"], counts["copy_3d"]) == (copies, pitched), (name, counts)
