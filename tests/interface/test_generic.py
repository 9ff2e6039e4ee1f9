"""Streams and events of any backend; and the backends that can only be counted."""

import pytest
from child import run_code

import accelrt
from accelrt import interface
from accelrt.interface import unverified

LAST = accelrt.device_count() - 1


def test_a_generic_stream_is_the_backends_own():
    stream = interface.Stream(f"cuda:{LAST}", priority=-1)
    assert type(stream) is accelrt.Stream
    assert stream.device_index == LAST
    assert type(interface.Stream()) is accelrt.Stream
    assert isinstance(stream, interface.Stream)
    same = interface.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    assert same == stream
    with interface.Stream(accelrt.device(0)) as entered:
        assert accelrt.current_stream() == entered


def test_a_generic_event_is_the_backends_own():
    start, end = interface.Event("cuda", enable_timing=True), interface.Event(enable_timing=True)
    assert type(start) is type(end) is accelrt.Event
    assert isinstance(start, interface.Event)
    stream = interface.Stream()
    start.record(stream)
    assert stream.record_event(end) is end
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert not isinstance(stream, interface.Event)
    assert not isinstance(start, interface.Stream)
    assert not isinstance(3, interface.Stream)


def test_a_backend_that_is_not_there_is_named():
    with pytest.raises(NotImplementedError, match="there is no interface for device 'tpu'"):
        interface.Stream("tpu")


@pytest.mark.parametrize("kind", ["xpu", "hip"])
def test_the_unverified_count_and_say_what_they_lack(kind):
    found = accelrt.get_interface_for_device(f"{kind}:0")
    assert (kind, found) in accelrt.get_registered_device_interfaces()
    assert found.device_count() >= 0
    assert found.is_available() is False
    assert {"set_device", "current_stream", "Stream", "memory_allocated"} <= set(found.lacks)
    assert "Unverified on hardware" in found.__doc__
    for name in found.lacks:
        if name != "Worker":
            with pytest.raises(accelrt.NotSupportedError, match=rf"{name}.*'{kind}'.*unverified on hardware"):
                getattr(found, name)()
    with pytest.raises(accelrt.NotSupportedError, match=r"Worker\.current_device of the interface"):
        found.Worker.current_device()
    with pytest.raises(accelrt.NotSupportedError, match="register an interface of your own"):
        interface.Stream(f"{kind}:0")


def test_whoever_registers_one_takes_its_place():
    class Mine(accelrt.get_interface_for_device("xpu")):
        @staticmethod
        def is_available():
            return True

    accelrt.register_interface_for_device("xpu", Mine)
    assert accelrt.get_interface_for_device("xpu") is Mine
    assert dict(accelrt.get_registered_device_interfaces())["xpu"] is Mine


def write_nodes(folder, *facts):
    for number, (simds, unique) in enumerate(facts):
        (folder / str(number)).mkdir()
        (folder / str(number) / "properties").write_text(f"simd_count {simds}\nunique_id {unique}\n")


def test_hip_devices_are_counted_as_hip_does(monkeypatch, tmp_path):
    write_nodes(tmp_path, (0, 0), (304, 0xABCDEF), (304, 0x123456), (64, 7))
    monkeypatch.setattr(unverified, "NODES", tmp_path)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    count = unverified.HipInterface.device_count
    assert count() == 3
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,GPU-0000000000abcdef")
    assert count() == 2
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert count() == 1
    (tmp_path / "1" / "properties").write_text("garbage\n")
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    assert count() == 2


def test_intels_devices_are_counted_by_their_vendor(monkeypatch, tmp_path):
    monkeypatch.setattr(unverified, "CARDS", tmp_path)
    assert unverified.XpuInterface.device_count() == 0
    for number, vendor in enumerate(("0x8086", "0x10de", "0x8086")):
        folder = tmp_path / f"renderD{128 + number}" / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
    (tmp_path / "renderD999").mkdir()
    assert unverified.XpuInterface.device_count() == 2


@pytest.mark.own_process
def test_counting_them_opens_nothing():
    code = (
        "import accelrt\n"
        "for kind in ('xpu', 'hip'):\n    accelrt.get_interface_for_device(kind).device_count()\n"
        "print(accelrt.is_initialized())"
    )
    assert run_code(code) == "False\n"
