"""Communicators of parts of another one's ranks, and settings of communicators."""

import threading
import types

import pytest
from child import in_own_process

import accelrt
from accelrt import nccl
from accelrt.nccl import communicator, nvidia
from accelrt.nccl.config import fill

FOUR = {"ACCELRT_HOST_DEVICES": "4"}


def sums(comms):
    """What all_reduce gives each rank, where device 0 puts in 1, the next 2, then 4, ..."""
    ordinals = [comm.device_index for comm in comms]
    arrays = [accelrt.full(3, 1 << ordinal, "int64", device=ordinal) for ordinal in ordinals]
    with nccl.group():
        for comm, array in zip(comms, arrays, strict=True):
            comm.all_reduce(array)
    for comm in comms:
        comm.synchronize()
    return [array.numpy().tolist()[0] for array in arrays]


@pytest.mark.host
@in_own_process(**FOUR)
def test_ranks_of_one_colour_are_together_in_the_order_of_their_keys():
    comms = nccl.init_all(range(4))
    parts = nccl.split_all(comms, [0, 1, 0, 1], [5, 0, 4, 0])
    assert [(each.rank, each.size, each.device_index) for each in parts] == [
        *((1, 2, 0), (0, 2, 1), (0, 2, 2), (1, 2, 3))
    ]
    assert sums(parts) == [5, 10, 5, 10]
    assert sums(comms) == [15] * 4
    for each in [*parts, *comms]:
        each.close()


@pytest.mark.host
@in_own_process(**FOUR)
def test_a_part_is_split_again_and_outlives_its_parent():
    comms = nccl.init_all(range(4))
    three = nccl.split_all(comms, [7, 7, None, 7])
    assert three[2] is None
    members = [each for each in three if each is not None]
    for each in comms:
        each.close()
    assert sums(members) == [11] * 3
    alone, *two = nccl.split_all(members, [0, 2, 2])
    assert (alone.size, alone.rank) == (1, 0)
    assert sums([alone]) == [1]
    assert sums(two) == [10, 10]
    for each in [*members, alone, *two]:
        each.close()


@pytest.mark.host
@in_own_process(**FOUR)
def test_ranks_on_threads_of_their_own_split_too():
    comms, found = nccl.init_all(range(4)), {}

    def work(comm):
        for turn in range(3):
            with comm.device:
                part = comm.split(comm.rank // 2 if turn < 2 else 0, -comm.rank)
                value = accelrt.full(1, 1 << comm.device_index, "int64")
                part.all_reduce(value)
                part.synchronize()
                found[comm.rank, turn] = (part.rank, value.numpy().tolist()[0])
                part.close()

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [found[rank, 0] for rank in range(4)] == [(1, 3), (0, 3), (1, 12), (0, 12)]
    assert [found[rank, 1] for rank in range(4)] == [found[rank, 0] for rank in range(4)]
    assert [found[rank, 2] for rank in range(4)] == [(3 - rank, 15) for rank in range(4)]
    for each in comms:
        each.close()


@pytest.mark.host
@in_own_process
def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout():
    first, second = nccl.init_all([0, 1], timeout=1)
    with pytest.raises(TimeoutError, match="rank 1"):
        first.split(0)
    first.abort()
    second.abort()


@pytest.mark.host
@in_own_process(**FOUR)
def test_ranks_are_left_out_and_the_others_keep_their_order():
    comms = nccl.init_all(range(4))
    fewer = nccl.shrink_all([comms[0], comms[2], comms[3]], [1])
    assert [(each.rank, each.size, each.device_index) for each in fewer] == [(0, 3, 0), (1, 3, 2), (2, 3, 3)]
    assert sums(fewer) == [13] * 3
    two = nccl.shrink_all([fewer[1], fewer[2]], iter([0]), config=nccl.Config(max_ctas=2))
    assert sums(two) == [12, 12]
    assert two[0].config.max_ctas == 2
    assert sums(comms) == [15] * 4
    for each in [*two, *fewer, *comms]:
        each.close()


@pytest.mark.host
@in_own_process(**FOUR)
def test_all_ranks_split_a_communicator_of_which_some_were_left_out_before():
    comms = nccl.init_all(range(4))
    smaller = nccl.shrink_all(comms[:3], [3])
    again, other = nccl.shrink_all(comms[:3], [3]), nccl.shrink_all(comms[1:], [0])
    parts = nccl.split_all(comms, [0, 0, 1, 1])
    assert sums(smaller) == sums(again) == [7] * 3
    assert sums(other) == [14] * 3
    assert sums(parts) == [3, 3, 12, 12]
    for each in [*parts, *other, *again, *smaller, *comms]:
        each.close()


@pytest.mark.host
@in_own_process(**FOUR)
def test_a_rank_that_stopped_is_left_out_by_those_on_threads_of_their_own():
    comms, found = nccl.init_all(range(4), timeout=20), {}

    def work(comm):
        with comm.device:
            value = accelrt.full(1, 1 << comm.device_index, "int64")
            comm.all_reduce(value)  # rank 3 does not come
            part = comm.shrink([3], abort=True)
            value = accelrt.full(1, 1 << comm.device_index, "int64")
            part.all_reduce(value)
            part.synchronize()
            found[part.rank] = value.numpy().tolist()[0]
            part.close()
            comm.abort()

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms[:3]]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {0: 7, 1: 7, 2: 7}
    comms[3].abort()


@pytest.mark.parametrize(
    ("exclude", "error", "text"),
    [
        ([], ValueError, "exclude is ..; pass each rank that is left out once"),
        ([1, 1], ValueError, "exclude is .1, 1.; pass each rank"),
        ([2], ValueError, "exclude has rank 2; the communicator has ranks 0 to 1"),
        ([0], ValueError, "exclude has rank 0, which calls it"),
        (1, TypeError, "exclude is 1; pass the ranks"),
        (["1"], TypeError, "exclude has '1' of type str"),
    ],
)
def test_ranks_that_cannot_be_left_out_are_refused(comms, exclude, error, text):
    with pytest.raises(error, match=text):
        comms[0].shrink(exclude)
    with nccl.group(), pytest.raises(RuntimeError, match="in a group; call it outside"):
        comms[0].shrink([1])
    with pytest.raises(ValueError, match="pass each once, and at least one"):
        nccl.shrink_all([], [1])
    assert sums(comms) == [3, 3]


def test_two_devices_are_split_and_used(comms):
    parts = nccl.split_all(comms, [0, 0], [1, 0])
    assert [each.rank for each in parts] == [1, 0]
    assert sums(parts) == [3, 3]
    alone = nccl.split_all(comms, [0, 1], config=nccl.Config(max_ctas=4, split_share=True))
    assert [each.size for each in alone] == [1, 1]
    assert alone[0].config.max_ctas == 4
    assert sums(alone) == [1, 2]
    assert sums(comms) == [3, 3]
    for each in [*parts, *alone]:
        each.close()


def test_settings_are_of_all_ways_to_make_one(two_devices):
    config = nccl.Config(min_ctas=1, max_ctas=8, comm_name="gradients", cta_policy="efficiency")
    comms = nccl.init_all([0, 1], config=config)
    assert [each.config for each in comms] == [config] * 2
    assert sums(comms) == [3, 3]
    part = nccl.split_all(comms, [0, 0])
    assert part[0].config is config
    for each in [*part, *comms]:
        each.close()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda comms: comms[0].split("red"), TypeError, "color is 'red' of type str"),
        (lambda comms: comms[0].split(-1), ValueError, "color is -1; it goes from 0"),
        (lambda comms: comms[0].split(0, 1.5), TypeError, "key is 1.5 of type float"),
        (lambda comms: comms[0].split(0, 1 << 31), ValueError, "key is 2147483648; it goes from"),
        (lambda comms: comms[0].split(0, config={}), TypeError, "pass an accelrt.nccl.Config"),
        (lambda comms: nccl.split_all([], []), ValueError, "pass each once, and at least one"),
        (lambda comms: nccl.split_all([comms[0]] * 2, [0, 0]), ValueError, "pass each once"),
        (lambda comms: nccl.split_all(comms, [0]), ValueError, "comms are 2, colors 1 and keys 2"),
        (lambda comms: nccl.split_all([1], [0]), TypeError, "pass Communicators"),
    ],
)
def test_bad_arguments_are_named(comms, call, error, text):
    with pytest.raises(error, match=text):
        call(comms)
    assert sums(comms) == [3, 3]


def test_a_split_is_no_operation_of_a_group(comms):
    with pytest.raises(RuntimeError, match="in a group; call it outside"), nccl.group():
        comms[0].split(0)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"cga_cluster_size": 9}, ValueError, "cga_cluster_size is 9; it goes from 0 to 8"),
        ({"min_ctas": 0}, ValueError, "min_ctas is 0"),
        ({"min_ctas": 8, "max_ctas": 4}, ValueError, "min_ctas is 8, above max_ctas, 4"),
        ({"max_ctas": True}, TypeError, "max_ctas is True of type bool; pass an int"),
        ({"split_share": 1}, TypeError, "split_share is 1 of type int; pass a bool"),
        ({"comm_name": b"x"}, TypeError, "comm_name is b'x' of type bytes"),
        ({"comm_name": ""}, ValueError, "pass 1 to 127 printable bytes"),
        ({"net_name": "a\n"}, ValueError, "printable"),
        ({"cta_policy": "fast"}, ValueError, "it may be default, efficiency, zero"),
    ],
)
def test_settings_out_of_range_are_named(given, error, text):
    with pytest.raises(error, match=text):
        nccl.Config(**given)


def test_settings_become_nccls_own():
    made = types.SimpleNamespace(max_ctas=None, split_share=None, cta_policy=None, comm_name="")
    fill(made, nccl.Config(max_ctas=4, split_share=False, cta_policy="zero", comm_name="x"))
    assert vars(made) == {"max_ctas": 4, "split_share": False, "cta_policy": 2, "comm_name": "x"}
    with pytest.raises(accelrt.NotSupportedError, match="has no nvls_ctas of ncclConfig_t"):
        fill(made, nccl.Config(nvls_ctas=2))
    bindings = pytest.importorskip("nccl.bindings.nccl")
    real = bindings.Config()
    fill(real, nccl.Config(max_ctas=4, comm_name="x", nvls_ctas=2, nvlink_centric_sched=True))
    assert (real.max_ctas, real.comm_name, real.nvls_ctas) == (4, "x", 2)


class Nccl(types.ModuleType):
    """In nccl4py's place: notes what a split calls."""

    NCCLError = RuntimeError

    class Config:
        ptr = 4096
        blocking = max_ctas = None

    def __init__(self):
        super().__init__("nccl.bindings.nccl")
        self.calls = []

    def comm_shrink(self, comm, ranks, count, config, flags):
        self.calls.append((comm, ranks, count, config, flags))
        return f"rest of {comm}"

    def comm_split(self, comm, color, key, config):
        self.calls.append((comm, color, key, config))
        return 0 if color < 0 else f"part of {comm}"


def test_nccl_is_asked_by_ncclCommSplit_for_ranks_without_a_colour_too(monkeypatch):
    made = Nccl()
    monkeypatch.setattr(nvidia, "_bindings", made)
    child = types.SimpleNamespace(config=nccl.Config(max_ctas=2))
    assert nvidia.split("comm", 3, 1, child) == "part of comm"
    assert nvidia.split("comm", -1, 0, None) is None
    assert made.calls == [("comm", 3, 1, 4096), ("comm", -1, 0, 4096)]
    assert communicator.Communicator.split.__doc__


def test_nccl_is_asked_by_ncclCommShrink(monkeypatch):
    made = Nccl()
    monkeypatch.setattr(nvidia, "_bindings", made)
    child = types.SimpleNamespace(config=None)
    assert nvidia.shrink("comm", (1, 3), True, child) == "rest of comm"
    assert made.calls == [("comm", (1, 3), 2, 4096, 1)]
    monkeypatch.delattr(Nccl, "comm_shrink")
    with pytest.raises(accelrt.NotSupportedError, match="ncclCommShrink"):
        nvidia.shrink("comm", (1,), False, child)
