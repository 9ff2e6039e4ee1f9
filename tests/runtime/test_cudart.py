"""accelrt.cudart(), check_error, accelrt.profiler, and errors made of a code, as in torch.cuda."""

import ctypes
import pickle

import numpy as np
import pytest
from child import in_child, in_fork, in_own_process
from device_arrays import bytes_of

import accelrt

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE = 0, 1, 2, 400


@pytest.fixture
def runtime():
    return accelrt.cudart()


def test_an_error_of_the_runtime_is_an_int_with_a_name(runtime):
    assert runtime.cudaError.success == SUCCESS
    assert runtime.cudaError(OUT_OF_MEMORY).name == "cudaErrorMemoryAllocation"
    assert repr(runtime.cudaError.success) == "<cudaError.success: 0>"
    assert repr(runtime.cudaError(INVALID_VALUE)) == "<cudaError.cudaErrorInvalidValue: 1>"
    assert runtime.cudaGetErrorString(runtime.cudaError(INVALID_VALUE)) == "invalid argument"
    assert runtime.cudaGetErrorString(98765) == "unrecognized error code"
    assert pickle.loads(pickle.dumps(runtime.cudaError(2))) == 2


def test_success_is_no_error_and_all_else_is_raised(runtime):
    accelrt.check_error(0)
    accelrt.check_error(runtime.cudaError.success)
    with pytest.raises(accelrt.CudaError, match=r"^out of memory \(2\)$") as caught:
        accelrt.check_error(runtime.cudaError(OUT_OF_MEMORY))
    assert (caught.value.code, caught.value.name) == (2, "OUT_OF_MEMORY")
    with pytest.raises(accelrt.CudaError, match=r"unrecognized error code \(98765\)"):
        accelrt.check_error(98765)


def test_an_error_is_made_of_a_code_alone():
    error = accelrt.CudaError(np.int32(INVALID_VALUE))
    assert (error.code, error.name, error.call) == (INVALID_VALUE, "INVALID_VALUE", "")
    assert str(error) == "invalid argument (1)"
    with pytest.raises(accelrt.CudaError) as raised:
        accelrt.check_error(INVALID_VALUE)
    assert str(raised.value) == str(error)
    assert "an identity of the allocator is violated" in str(accelrt.CudaError(-6))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert accelrt.CudaError("text").code == 999
    assert (accelrt.cudaStatus.SUCCESS, accelrt.cudaStatus.ERROR_NOT_READY) == (0, 34)


def test_host_memory_is_page_locked_and_let_go(runtime):
    memory = np.zeros(8192, np.uint8)
    address = memory.ctypes.data
    assert not accelrt.is_pinned(memory)
    assert runtime.cudaHostRegister(address, memory.nbytes, 0) == SUCCESS
    assert accelrt.is_pinned(memory)
    assert runtime.cudaHostRegister(address, memory.nbytes, 0) == 712
    assert runtime.cudaHostUnregister(address) == SUCCESS
    assert runtime.cudaHostUnregister(address) == 713
    for given in ((0, 8, 0), (address, 0, 0), (address, 8, 77), (1 << 64, 8, 0)):
        assert runtime.cudaHostRegister(*given) == INVALID_VALUE
    assert runtime.cudaHostUnregister(0) == INVALID_VALUE


def test_a_stream_is_made_used_and_destroyed(runtime):
    handle = ctypes.c_uint64()
    assert runtime.cudaStreamCreate(ctypes.addressof(handle)) == SUCCESS
    stream = accelrt.ExternalStream(handle.value)
    with accelrt.Buffer(64) as buffer:
        buffer.fill(5, stream=stream)
        stream.synchronize()
        assert (bytes_of(buffer) == 5).all()
    del stream
    assert runtime.cudaStreamDestroy(handle.value) == SUCCESS
    assert runtime.cudaStreamCreate(0) == INVALID_VALUE
    assert runtime.cudaStreamDestroy(0) == INVALID_HANDLE


def test_memory_information_is_the_devices(runtime):
    assert runtime.cudaMemGetInfo(0)[1] == runtime.cudaMemGetInfo(-1)[1] == accelrt.mem_get_info(0)[1]
    for wrong in (-2, accelrt.device_count(), 1 << 40):
        with pytest.raises(accelrt.CudaError, match="INVALID_DEVICE"):
            runtime.cudaMemGetInfo(wrong)


def test_the_profiler_starts_and_stops_in_turn(monkeypatch, runtime):
    accelrt.profiler.start()
    accelrt.profiler.stop()
    calls = []
    monkeypatch.setattr(runtime, "cudaProfilerStart", lambda: calls.append("start") or 0)
    monkeypatch.setattr(runtime, "cudaProfilerStop", lambda: calls.append("stop") or 0)
    with pytest.raises(ZeroDivisionError), accelrt.profiler.profile():
        calls.append(1 / 0)
    assert calls == ["start", "stop"]
    monkeypatch.setattr(runtime, "cudaProfilerStart", lambda: 1)
    with pytest.raises(accelrt.CudaError, match=r"invalid argument \(1\)"), accelrt.profiler.profile():
        calls.append("never")
    assert calls == ["start", "stop"]


def test_the_loading_of_modules_has_two_modes():
    assert accelrt.get_module_loading() in ("lazy", "eager")
    with pytest.raises(ValueError, match="mode is 'LAZY'; it may be 'lazy' or 'eager'"):
        accelrt.set_module_loading("LAZY")


def compare_with_torch():
    import torch

    theirs, ours = torch.cuda.cudart(), accelrt.cudart()
    assert {name for name in dir(theirs) if name.startswith("cuda")} <= set(ours.__all__)
    for code in (0, 1, 2, 400, 600, 801):
        assert ours.cudaGetErrorString(code) == theirs.cudaGetErrorString(theirs.cudaError(code))
    with pytest.raises(torch.cuda.CudaError) as caught:
        torch.cuda.check_error(2)
    with pytest.raises(accelrt.CudaError) as ours_caught:
        accelrt.check_error(2)
    assert str(caught.value) == str(ours_caught.value)
    assert int(ours.cudaProfilerStart()) == int(ours.cudaProfilerStop()) == 0


@pytest.mark.gpu
@pytest.mark.own_process
def test_the_calls_are_torchs():
    pytest.importorskip("torch")
    in_child(compare_with_torch, ACCELRT_DRIVER="cuda")


@pytest.mark.gpu
@in_own_process(ACCELRT_DRIVER="cuda")
def test_a_driver_loads_modules_as_it_was_told():
    accelrt.set_module_loading("eager")
    assert accelrt.get_module_loading() == "eager"
    accelrt.set_module_loading("eager")
    with pytest.raises(RuntimeError, match="modules are loaded eagerly, and the driver has read"):
        accelrt.set_module_loading("lazy")


@in_own_process
def test_a_child_of_fork_is_told():
    accelrt.init()

    def child():
        with pytest.raises(accelrt.ForkedError, match="forked subprocess"):
            accelrt.set_module_loading("lazy")
        with pytest.raises(accelrt.ForkedError):
            accelrt.cudart()

    assert in_fork(child) == 0
