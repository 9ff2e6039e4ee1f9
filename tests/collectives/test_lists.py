"""Functions over lists compare their arrays with each other before any collective is put into a stream."""

import numpy as np
import pytest

import accelrt
from accelrt import nccl
from accelrt.nccl import collectives

pytestmark = pytest.mark.usefixtures("two_devices")


def of(size, dtype="float32", rank=0):
    return accelrt.full(size, rank + 1, dtype, rank)


def pair(size=4, dtype="float32"):
    return [of(size, dtype, rank) for rank in range(2)]


def assert_untouched(*arrays):
    for each in arrays:
        assert (each.numpy() == each.device_index + 1).all()


CALLS = {
    "all_reduce": nccl.all_reduce,
    "reduce": nccl.reduce,
    "broadcast": nccl.broadcast,
    "all_gather": lambda inputs: nccl.all_gather(inputs, pair(8)),
    "reduce_scatter": lambda inputs: nccl.reduce_scatter(inputs, pair(2)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("second", "error", "said"),
    [
        ((8, "float32"), ValueError, r"inputs\[1\] has 8 elements, inputs\[0\] has 4; pass arrays of one"),
        ((4, "float64"), TypeError, r"inputs\[1\] is of float64, inputs\[0\] of float32; all arrays have"),
    ],
    ids=["sizes", "types"],
)
def test_inputs_of_different_sizes_or_types_are_refused(call, second, error, said):
    inputs = [of(4), of(*second, rank=1)]
    with pytest.raises(error, match=said):
        CALLS[call](inputs)
    assert_untouched(*inputs)


@pytest.mark.parametrize("call", CALLS)
def test_inputs_on_one_device_are_refused(call):
    with pytest.raises(ValueError, match=r"inputs are on devices \[0, 0\] .*pass one on each device"):
        CALLS[call]([of(4), of(4)])


def test_outputs_are_compared_with_the_inputs():
    with pytest.raises(ValueError, match=r"outputs\[1\] has 3 elements, for inputs of 4 it should have 4"):
        nccl.all_reduce(pair(), [of(4), of(3, rank=1)])
    with pytest.raises(TypeError, match=r"outputs\[0\] is of int32, inputs\[0\] of float32"):
        nccl.all_reduce(pair(), pair(dtype="int32"))
    with pytest.raises(ValueError, match=r"outputs\[0\] has 4 elements, for inputs of 4 it should have 8"):
        nccl.all_gather(pair(), pair())
    with pytest.raises(ValueError, match=r"outputs\[0\] has 4 elements, for inputs of 4 it should have 2"):
        nccl.reduce_scatter(pair(), pair())
    with pytest.raises(ValueError, match=r"inputs\[0\] has 3 elements; pass a multiple of 2"):
        nccl.reduce_scatter(pair(3), pair(1))
    with pytest.raises(ValueError, match=r"output has 5 elements, inputs\[0\] has 4"):
        nccl.reduce(pair(), of(5))
    with pytest.raises(ValueError, match=r"output is on device 1, the communicator on device 0"):
        nccl.reduce(pair(), of(4, rank=1))


def test_a_list_that_was_refused_leaves_the_communicators_usable():
    good = pair()
    with pytest.raises(ValueError, match="elements"):
        nccl.all_reduce([good[0], of(8, rank=1)])
    nccl.all_reduce(good)
    for each in good:
        np.testing.assert_array_equal(each.numpy(), np.full(4, 3, "float32"))


def test_roots_and_communicators_are_checked(comms):
    with pytest.raises(ValueError, match=r"root is 2; it goes from 0 to 1"):
        nccl.broadcast(pair(), 2)
    with pytest.raises(TypeError, match=r"root is 1\.5 of type float; pass an int"):
        nccl.reduce(pair(), root=1.5)
    with pytest.raises(ValueError, match="comms has a Communicator twice"):
        nccl.all_reduce(pair(), comms=[comms[0], comms[0]])
    with pytest.raises(TypeError, match=r"comms\[1\] is of type NoneType"):
        nccl.all_reduce(pair(), comms=[comms[0], None])


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_is_a_place_in_the_list_whatever_the_ranks_are(comms, root):
    inputs = pair()[::-1]
    nccl.broadcast(inputs, root, comms=comms[::-1])
    for each in inputs:
        assert (each.numpy() == 2 - root).all()


@pytest.mark.host
def test_communicators_that_failed_tell_so_once_and_are_made_anew():
    nccl.all_reduce(pair())
    made = collectives._made[0, 1]
    with made[0]._turn() as (handle,):
        made[0]._backend.revoke(handle)  # as a rank that fails does
    with pytest.raises(accelrt.NcclError, match="the communicator was aborted"):
        nccl.all_reduce(pair())
    arrays = pair()
    nccl.all_reduce(arrays)
    assert collectives._made[0, 1] is not made
    assert all("aborted" in repr(each) for each in made)
    assert (arrays[1].numpy() == 3).all()


@pytest.mark.host
def test_communicators_of_which_one_was_aborted_are_made_anew():
    nccl.all_reduce(pair())
    collectives._made[0, 1][1].abort()
    arrays = pair()
    nccl.all_reduce(arrays)
    assert (arrays[0].numpy() == 3).all()


@pytest.mark.host
@pytest.mark.parametrize(
    ("size", "dtype", "text"), [(8, "float32", "all_reduce of 32 bytes"), (2, "float64", "datatype 8")]
)
def test_ranks_that_pass_other_sizes_or_types_learn_of_it_in_all_that_follows(size, dtype, text):
    comms, arrays = nccl.init_all([0, 1]), [of(4), of(size, dtype, 1)]
    for comm, array in zip(comms, arrays, strict=True):
        comm.all_reduce(array)
    told = []
    for comm, array in zip(comms, arrays, strict=True):
        with pytest.raises(accelrt.NcclError, match=r"disagree|has left") as caught:
            comm.synchronize(timeout=300)
        told.append(str(caught.value))
        for call in (comm.check, lambda comm=comm, array=array: comm.all_reduce(array)):
            with pytest.raises(accelrt.NcclError, match=r"disagree|has left"):
                call()
        comm.close()
    assert any(text in each for each in told)
    assert_untouched(*arrays)
