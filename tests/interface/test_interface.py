"""The registry of device interfaces: the built-in ones, what is refused, and what other packages add."""

import pickle
import sys

import pytest
from child import in_fork, in_own_process

import accelrt
from accelrt import interface
from accelrt.runtime import init

HERE = init.chosen_driver()


def make_interface(**replaced):
    """A whole interface of a backend with two devices; None leaves a member out."""

    class Stream(interface.StreamBase):
        def query(self):
            return True

        synchronize = wait_event = wait_stream = record_event = query

    class Event(interface.EventBase):
        def record(self, stream=None):
            pass

        wait = query = synchronize = elapsed_time = record

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

    class Worker(interface.CachingWorker):
        kind = "xpu"
        count = staticmethod(lambda: 2)
        read = staticmethod(lambda ordinal: f"xpu {ordinal}")
        current = staticmethod(lambda: 0)

    state = [0]

    def exchange(device):
        before, state[0] = state[0], device
        return before

    members = {
        "device": Guard,
        "Event": Event,
        "Stream": Stream,
        "Worker": Worker,
        "current_device": staticmethod(lambda: state[0]),
        "set_device": staticmethod(exchange),
        "exchange_device": staticmethod(exchange),
        "maybe_exchange_device": staticmethod(exchange),
        "device_count": staticmethod(lambda: 2),
        "is_available": staticmethod(lambda: True),
        "stream": staticmethod(lambda stream: None),
        "current_stream": staticmethod(lambda device=None: Stream()),
        "set_stream": staticmethod(lambda stream: None),
        "get_raw_stream": staticmethod(lambda device_idx: 7),
        "synchronize": staticmethod(lambda device=None: None),
        "get_compute_capability": staticmethod(lambda device=None: "xe"),
    } | replaced
    body = {name: member for name, member in members.items() if member is not None}
    return type("XpuInterface", (interface.DeviceInterface,), body)


def test_cuda_and_host_are_built_in():
    cuda = accelrt.get_interface_for_device("cuda")
    assert accelrt.get_interface_for_device("cuda:1") is cuda
    assert accelrt.get_interface_for_device(accelrt.device(0)) is accelrt.get_interface_for_device(HERE)
    names = [name for name, _ in accelrt.get_registered_device_interfaces()]
    devices = [f"{HERE}:{ordinal}" for ordinal in range(accelrt.device_count())]
    assert [name for name in names if name.startswith(HERE)] == [HERE, *devices]
    assert [name for name in names if ":" not in name][:2] == ["cuda", "host"]
    assert accelrt.get_interface_for_device(devices[-1]).device_count() == len(devices)
    assert issubclass(cuda, accelrt.DeviceInterface)


def test_what_the_base_has_for_an_interface_to_replace():
    base = accelrt.DeviceInterface
    with pytest.raises(NotImplementedError):
        base.device(0)
    with pytest.raises(NotImplementedError):
        base.Worker.get_device_properties(0)
    for name in ("device", "Worker"):
        with pytest.raises(accelrt.InterfaceError, match=f"it lacks {name}"):
            accelrt.register_interface_for_device("xpu", make_interface(**{name: None}))


def test_a_stream_is_made_current_by_the_three_properties_that_name_it():
    found = accelrt.get_interface_for_device(HERE)
    stream = accelrt.Stream()
    before = accelrt.current_stream()
    found._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)
    assert accelrt.current_stream() == stream
    accelrt.set_stream(before)


def test_an_unknown_device_is_an_error_that_names_those_there_are():
    with pytest.raises(NotImplementedError, match=r"cuda, host.*register_interface_for_device"):
        accelrt.get_interface_for_device("tpu:0")


@pytest.mark.parametrize("name", ["", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "1", "cuda:1:2", " cuda"])
def test_a_malformed_name_is_refused(name):
    with pytest.raises(ValueError, match="cuda:1"):
        accelrt.get_interface_for_device(name)


@pytest.mark.parametrize("thing", [0, None, 1.5, object()])
def test_what_is_no_device_is_refused(thing):
    with pytest.raises(TypeError, match="cuda:1"):
        accelrt.get_interface_for_device(thing)


@pytest.mark.parametrize("kind", ["cuda", HERE])
def test_a_built_in_interface_is_the_runtime(kind):
    found = accelrt.get_interface_for_device(kind)
    assert found.is_available()
    assert found.device_count() == accelrt.device_count()
    stream = found.Stream(device=0)
    with found.stream(stream):
        assert found.current_stream(0) == stream
        assert found.get_raw_stream(0) == stream.cuda_stream
    event = found.Event()
    event.record(stream)
    found.synchronize(0)
    assert event.query()
    assert found.get_device_properties(0) is accelrt.get_device_properties(0)
    assert found.Worker.get_device_properties(f"{kind}:0") is accelrt.get_device_properties(0)
    major, minor = accelrt.get_device_capability(0)
    assert found.get_compute_capability(0) == 10 * major + minor
    assert found.memory_allocated(0) == 0
    assert found.is_dtype_supported("float32")
    assert found.is_dtype_supported("torch.bfloat16") == accelrt.is_bf16_supported(including_emulation=False)


@pytest.mark.skipif(accelrt.device_count() < 2, reason="needs two devices")
def test_devices_are_exchanged_and_guards_put_them_back():
    found = accelrt.get_interface_for_device("cuda")
    found.set_device(0)
    assert found.exchange_device(1) == 0
    assert found.maybe_exchange_device(0) == 1
    assert found.exchange_device(-1) == -1
    assert found.current_device() == 0
    with found.device(1):
        assert found.current_device() == 1
    with interface.DeviceGuard(found, 1) as guard:
        assert (found.current_device(), guard.prev_idx) == (1, 0)
    with interface.DeviceGuard(found, None):
        assert found.current_device() == 0
    assert found.current_device() == 0


def test_a_whole_interface_is_registered_and_found():
    xpu = make_interface()
    accelrt.register_interface_for_device("xpu", xpu)
    assert accelrt.get_interface_for_device("xpu:1") is xpu
    special = make_interface()
    accelrt.register_interface_for_device("xpu:1", special)
    assert accelrt.get_interface_for_device("xpu:1") is special
    assert accelrt.get_interface_for_device("xpu:0") is xpu
    assert ("xpu", xpu) in accelrt.get_registered_device_interfaces()
    with interface.DeviceGuard(xpu, 1):
        assert xpu.current_device() == 1
    assert xpu.get_device_properties("xpu:1") == "xpu 1"


def test_all_that_is_missing_is_named():
    bad = make_interface(set_device=None, get_raw_stream=None, Worker=None, device=None)
    with pytest.raises(accelrt.InterfaceError) as caught:
        accelrt.register_interface_for_device("tpu", bad)
    assert set(caught.value.missing) == {"set_device", "get_raw_stream", "Worker", "device"}
    assert caught.value.device == "tpu"
    assert all(name in str(caught.value) for name in caught.value.missing)
    with pytest.raises(NotImplementedError):
        accelrt.get_interface_for_device("tpu")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.missing) == (str(caught.value), caught.value.missing)


def test_an_interface_that_overrides_nothing_lacks_everything():
    class Empty(accelrt.DeviceInterface):
        pass

    with pytest.raises(accelrt.InterfaceError) as caught:
        accelrt.register_interface_for_device("xpu", Empty)
    assert {"device", "Event", "Stream", "Worker", "synchronize"} < set(caught.value.missing)


def test_wrong_bases_are_refused():
    class Foreign:
        pass

    for name in ("Event", "Stream"):
        with pytest.raises(
            accelrt.InterfaceError, match=f"{name} must derive from accelrt.interface.{name}Base"
        ):
            accelrt.register_interface_for_device("xpu", make_interface(**{name: Foreign}))
    for given in (Foreign, 3, None):
        with pytest.raises(accelrt.InterfaceError, match="DeviceInterface"):
            accelrt.register_interface_for_device("xpu", given)


def test_a_foreign_class_that_is_made_a_stream_still_needs_its_methods():
    class Foreign:
        def query(self):
            return True

    interface.StreamBase.register(Foreign)
    with pytest.raises(accelrt.InterfaceError) as caught:
        accelrt.register_interface_for_device("xpu", make_interface(Stream=Foreign))
    assert set(caught.value.missing) == {
        f"Stream.{name}" for name in ("record_event", "synchronize", "wait_event", "wait_stream")
    }


def test_a_method_that_is_not_static_is_refused():
    bad = make_interface(set_device=lambda self, device: None, is_available=3)
    with pytest.raises(accelrt.InterfaceError) as caught:
        accelrt.register_interface_for_device("xpu", bad)
    assert len(caught.value.wrong) == 2
    assert "set_device(0) cannot be called on the class" in str(caught.value)


def test_a_lazy_registration_is_imported_when_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "lazy_xpu.py").write_text("class Half:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    accelrt.register_interface_for_device("xpu", "lazy_xpu:Half")
    accelrt.register_interface_for_device("vpu", make_interface)
    assert "lazy_xpu" not in sys.modules
    with pytest.raises(accelrt.InterfaceError, match="Half cannot be registered for 'xpu'"):
        accelrt.get_interface_for_device("xpu")
    with pytest.warns(RuntimeWarning, match="'xpu' cannot be used"):
        names = [name for name, _ in accelrt.get_registered_device_interfaces()]
    assert "vpu" in names
    assert "xpu" not in names
    accelrt.register_interface_for_device("xpu", "lazy_xpu:Nothing")
    with pytest.raises(accelrt.InterfaceError, match="lazy_xpu has no Nothing"):
        accelrt.get_interface_for_device("xpu")
    with pytest.raises(ValueError, match=r"package\.module:Class"):
        accelrt.register_interface_for_device("xpu", "lazy_xpu")
    first = accelrt.get_interface_for_device("vpu")
    assert accelrt.get_interface_for_device("vpu") is first


@in_own_process
def test_a_worker_answers_in_a_child_forked_after_use():
    found = accelrt.get_interface_for_device("cuda")
    assert not accelrt.is_initialized()
    recorded = found.Worker.record()
    found.Worker.set_device(1)

    def child():
        assert found.Worker.current_device() == 1
        assert found.Worker.get_device_properties() == recorded[1]
        with pytest.raises(accelrt.ForkedError):
            found.current_device()

    assert in_fork(child) == 0
    found.Worker.properties.clear()
    found.Worker.restore(pickle.loads(pickle.dumps(recorded)))
    assert found.Worker.get_device_properties("cuda:1").uuid == recorded[1].uuid
