"""Limits, access policy windows and the loading of modules, on a library that stands in for NVIDIA's."""

import gc
import os

import pytest
from child import in_own_process

import accelrt

MIB = 1 << 20
STAND_IN = {"LD_LIBRARY_PATH": "{library}", "ACCELRT_DRIVER": "cuda"}


@in_own_process(**STAND_IN)
def test_limits_are_of_each_device(library):
    assert accelrt.get_limit("stack_size") == 1024
    assert accelrt.set_limit("stack_size", 4096, 1) == 4096
    assert (accelrt.get_limit("stack_size", 0), accelrt.get_limit("stack_size", "cuda:1")) == (1024, 4096)
    assert accelrt.set_limit("persisting_l2_cache_size", 2 * MIB + 5) == 2 * MIB
    assert accelrt.set_limit("persisting_l2_cache_size", 1 << 40) == 4 * MIB
    accelrt.reset_persisting_l2_cache(1)
    with pytest.raises(accelrt.NotSupportedError, match="no such limit"):
        accelrt.get_limit("cig_enabled")
    for value, kind in ((-1, ValueError), (1 << 64, ValueError), ("1", TypeError), (1.5, TypeError)):
        with pytest.raises(kind, match="value is"):
            accelrt.set_limit("stack_size", value)
    with pytest.raises(ValueError, match="limit is 'stack'; it may be stack_size, "):
        accelrt.get_limit("stack")
    assert accelrt.driver_version() == (13, 0)


@in_own_process(**STAND_IN)
def test_a_window_is_the_streams_and_the_next_holder_has_none(library):
    stream = accelrt.Stream(1)
    assert stream.get_access_policy_window() is None
    stream.set_access_policy_window(4096, 8192, 0.5)
    window = stream.get_access_policy_window()
    assert window == (4096, 8192, 0.5, "persisting", "streaming")
    assert (window.num_bytes, window.miss) == (8192, "streaming")
    stream.set_access_policy_window(4096, 16 * MIB, 1, "normal", "normal")
    stream.reset_access_policy_window()
    assert stream.get_access_policy_window() is None
    stream.set_access_policy_window(4096, 1)
    handle = stream.handle
    del stream
    gc.collect()
    again = accelrt.Stream(1)
    assert again.handle == handle
    assert again.get_access_policy_window() is None
    external = accelrt.ExternalStream(0x300, 0)
    external.set_access_policy_window(1, 2)
    del external
    assert accelrt.ExternalStream(0x300, 0).get_access_policy_window().num_bytes == 2


@in_own_process(**STAND_IN)
def test_windows_that_make_no_sense_are_refused(library):
    stream = accelrt.Stream()
    for given, kind, text in (
        ((0, 16 * MIB + 1), ValueError, "num_bytes is 16777217; a window of device 0 has at most 16777216"),
        ((-1, 2), ValueError, "address is -1"),
        (("x", 2), TypeError, "address is 'x'"),
        ((1, 2, 1.5), ValueError, "hit_ratio is 1.5; it is a number from 0 to 1"),
        ((1, 2, float("nan")), ValueError, "hit_ratio is nan"),
        ((1, 2, True), ValueError, "hit_ratio is True"),
        ((1, 2, 1, "kept"), ValueError, "hit is 'kept'; it may be normal, streaming, persisting"),
        ((1, 2, 1, "normal", "persisting"), ValueError, "miss is 'persisting'; it may be normal, streaming"),
    ):
        with pytest.raises(kind, match=text):
            stream.set_access_policy_window(*given)
    assert stream.get_access_policy_window() is None
    with pytest.raises(accelrt.CudaError, match="INVALID_HANDLE"):
        accelrt.ExternalStream(0x888, 0).set_access_policy_window(1, 2)


@pytest.mark.parametrize(("first", "then"), [("eager", "lazy"), ("lazy", "eager")])
@in_own_process(**STAND_IN)
def test_the_loading_of_modules_is_chosen_before_the_first_use(library, first, then):
    accelrt.set_module_loading(first)
    assert os.environ["CUDA_MODULE_LOADING"] == first.upper()
    assert accelrt.get_module_loading() == first
    accelrt.set_module_loading(first)
    with pytest.raises(RuntimeError, match="has read CUDA_MODULE_LOADING already"):
        accelrt.set_module_loading(then)


@in_own_process(**STAND_IN)
def test_a_driver_that_was_started_before_is_told(library):
    accelrt.set_module_loading("eager")
    os.environ["CUDA_MODULE_LOADING"] = "LAZY"  # as where another library had started the driver
    with pytest.warns(RuntimeWarning, match="another library had started CUDA before"):
        accelrt.init()
