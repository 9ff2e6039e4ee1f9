"""Where the driver refuses a copy of rows, the error says so, nothing is left, and the next one works."""

import pytest
from child import in_child, wrap_host

pytestmark = [pytest.mark.host, pytest.mark.own_process]


def refuse_each_call():
    faults = wrap_host()
    import gc
    import itertools

    import numpy as np

    import accelrt

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
    faults.reset_call_counts()
    work()
    called = [row for row, calls in faults.call_counts().items() if calls]
    assert {"copy_3d", "copy_async"} <= set(called)
    raised = 0
    for row in called:
        for call in itertools.count(1):
            faults.arm(call=call, code=999, mode="once", rows=[row])
            try:
                found = work()
            except accelrt.CudaError as error:
                assert error.code == 999, error
                if row in ("copy_3d", "fill"):
                    assert error.call == row, error
                raised += 1
            else:
                assert (found == expected).all()
            made = faults.fired()
            faults.disarm()
            gc.collect()
            accelrt.synchronize()
            accelrt.host_empty_cache()
            held = accelrt.memory_allocated(), accelrt.host_memory_stats()["allocated_bytes.current"]
            assert held == (0, 0), (row, call, held)
            accelrt.memory.audit()
            if made < call:
                break
        assert (work() == expected).all()
    assert raised > 10, raised


def test_every_refusal_is_told_and_leaves_nothing():
    in_child(refuse_each_call)
