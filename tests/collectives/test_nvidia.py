"""How NCCL is found and called: with a stand-in for nccl4py, and with nccl4py itself where it is
installed."""

import importlib
import inspect
import os
import sys
import types

import pytest

from accelrt import NcclError, NotSupportedError, nccl
from accelrt.nccl import communicator, host_for_tests, nvidia
from accelrt.nccl.codes import BackendError, error_of

pytestmark = pytest.mark.own_process
COLLECTIVE = ["sendbuff", "recvbuff"]


class NCCLError(Exception):
    def __init__(self, status):
        super().__init__(f"result {status}")
        self.status = status


class StandIn(types.ModuleType):
    """In nccl4py's place: notes its calls, and fails as it is told."""

    NCCLError = NCCLError
    Comm = object
    failing = None
    states = ()  # what comm_get_async_error answers in turn, before 6

    class Config:
        blocking = None
        ptr = 4096

    def __init__(self):
        super().__init__("nccl.bindings.nccl")
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            if name == self.failing:
                raise NCCLError(6)
            if name == "comm_get_async_error" and self.states:
                return self.states.pop(0)
            if name.startswith("comm_init"):
                return f"comm {arguments[2]}"
            return {
                "get_unique_id": bytes(128),
                "get_version": 22809,
                "get_last_error": "socket closed",
                "comm_get_async_error": 6,
            }.get(name)

        return call


def test_the_backends_have_the_same_functions():
    names = [*vars(nvidia)]  # in the file's order
    assert set(names[names.index("version") :]) <= set(vars(host_for_tests))


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    made = StandIn()
    for name in ("nccl", "nccl.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", made)
    monkeypatch.setattr(nvidia, "_bindings", None)
    nvidia.bindings()
    made.calls.clear()
    return made


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("all_reduce", (10, 20, 5, 7, 1)),
        ("reduce_scatter", (10, 20, 5, 7, 1)),
        ("all_gather", (10, 20, 5, 7)),
        ("broadcast", (10, 20, 5, 7, 3)),
        ("reduce", (10, 20, 5, 7, 1, 3)),
        ("send", (10, 5, 7, 3)),
        ("recv", (20, 5, 7, 3)),
    ],
)
def test_operations_are_called_with_nccls_arguments(stand_in, call, expected):
    stream = types.SimpleNamespace(handle=99)
    nvidia.issue("comm", stream, call, 10, 20, 5, 4, 7, 1, 3, False)
    assert stand_in.calls == [(call, *expected, "comm", 99)]


def test_errors_have_nccls_number_and_last_words(stand_in):
    stand_in.failing = "all_reduce"
    with pytest.raises(BackendError, match="result 6; socket closed") as caught:
        nvidia.issue("comm", types.SimpleNamespace(handle=0), "all_reduce", 1, 1, 1, 4, 7, 0, 0, False)
    assert caught.value.code == 6
    error = error_of(6, "socket closed", "all_reduce(rank=0)")
    assert isinstance(error, NcclError)
    assert (error.code, error.name, error.call) == (6, "REMOTE_ERROR", "all_reduce")
    assert "all_reduce(rank=0) answered REMOTE_ERROR (6): socket closed; abort() this communicator" in str(
        error
    )


def test_an_asynchronous_error_is_read(stand_in):
    code, text = nvidia.async_error("comm")
    assert code == 6
    assert "socket closed" in text


def test_a_group_that_failed_is_ended_quietly(stand_in):
    stand_in.failing = "group_end"
    nvidia.group_abandon()
    with pytest.raises(BackendError):
        nvidia.group_end()


@pytest.mark.host
@pytest.mark.usefixtures("two_devices")
def test_communicators_are_made_so_that_no_call_waits_for_other_ranks(stand_in, monkeypatch):
    configs = []
    monkeypatch.setattr(
        stand_in, "Config", lambda: configs.append(StandIn.Config()) or configs[-1], raising=False
    )
    assert nvidia.init_rank(2, bytes(128), 1, 0, 5.0) == "comm 1"
    assert stand_in.calls == [("comm_init_rank_config", 2, bytearray(128), 1, 4096)]
    assert [each.blocking for each in configs] == [0]
    stand_in.calls.clear()
    stand_in.states = [7, 0, 0]
    monkeypatch.setattr(communicator, "backend", lambda: nvidia)
    comms = nccl.init_all([0, 1], timeout=5)
    assert [each._hold.take("of the test") for each in comms] == ["comm 0", "comm 1"]
    names = [call[0] for call in stand_in.calls]
    assert names[:5] == ["get_unique_id", "group_start", *["comm_init_rank_config"] * 2, "group_end"]
    assert names[5:] == ["comm_get_async_error"] * 3


@pytest.mark.host
@pytest.mark.usefixtures("two_devices")
def test_ranks_that_cannot_be_made_free_those_before_them(stand_in, monkeypatch):
    stand_in.failing = "group_end"
    monkeypatch.setattr(communicator, "backend", lambda: nvidia)
    with pytest.raises(NcclError, match=r"init_all\(devices=\[0, 1\]\) answered REMOTE_ERROR") as caught:
        nccl.init_all([0, 1], timeout=5)
    assert caught.value.call == "init_all"
    assert stand_in.calls[-3:] == [("group_end",), ("comm_abort", "comm 0"), ("comm_abort", "comm 1")]
    stand_in.calls.clear()
    stand_in.failing = "comm_init_rank_config"
    with pytest.raises(NcclError, match=r"init_all\(devices"):
        nccl.init_all([0, 1], timeout=5)
    assert [each[0] for each in stand_in.calls[-2:]] == ["all_reduce", "group_end"]


def test_what_goes_on_after_a_call_returned_is_asked_for(stand_in):
    stand_in.states = [7, 0]
    assert nvidia.in_progress("comm")
    assert not nvidia.in_progress("comm")
    with pytest.raises(BackendError, match="socket closed"):
        nvidia.in_progress("comm")
    assert nvidia.awaited("comm") == ""


def test_a_library_without_revoke_is_left_alone(stand_in):
    stand_in.failing = "comm_revoke"
    nvidia.revoke("comm")
    assert stand_in.calls == [("comm_revoke", "comm", 0)]


@pytest.mark.parametrize(("given", "found"), [(None, "0"), ("1", "1")])
def test_arrays_of_captured_operations_are_not_registered_unless_asked_for(
    stand_in, monkeypatch, given, found
):
    monkeypatch.setattr(nvidia, "_bindings", None)
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", given or "")
    if given is None:
        monkeypatch.delenv("NCCL_GRAPH_REGISTER")
    nvidia.bindings()
    assert os.environ["NCCL_GRAPH_REGISTER"] == found


def test_a_missing_or_old_nccl4py_is_named(monkeypatch):
    monkeypatch.setattr(nvidia, "_bindings", None)
    monkeypatch.setitem(sys.modules, "nccl", None)
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", None)
    with pytest.raises(
        NotSupportedError, match=r'nccl4py cannot be imported .*pip install "accelrt\[nccl\]"'
    ):
        nvidia.version()
    old = types.ModuleType("nccl.bindings.nccl")
    monkeypatch.setitem(sys.modules, "nccl", types.ModuleType("nccl"))
    monkeypatch.setitem(sys.modules, "nccl.bindings", types.ModuleType("nccl.bindings"))
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", old)
    with pytest.raises(NotSupportedError, match=r"older than 0\.6"):
        nvidia.version()


def test_a_library_that_nothing_finds_is_looked_for_beside_torch(tmp_path, monkeypatch):
    beside = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    beside.parent.mkdir(parents=True)
    beside.write_bytes(b"no library")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.split(".")[0] in ("nvidia", "torch")]:
        monkeypatch.delitem(sys.modules, name)
    assert beside in [path.resolve() for path in nvidia.candidates()]

    class Unloadable(StandIn):
        failing = "get_version"

    with pytest.raises(NotSupportedError, match=r"no libnccl\.so\.2 can be loaded .result 6"):
        nvidia.load_library(Unloadable())


def test_nccl4py_takes_what_is_given():
    bindings = pytest.importorskip("nccl.bindings.nccl")
    expected = {
        "all_reduce": [*COLLECTIVE, "count", "datatype", "op", "comm", "stream"],
        "reduce_scatter": [*COLLECTIVE, "recvcount", "datatype", "op", "comm", "stream"],
        "all_gather": [*COLLECTIVE, "sendcount", "datatype", "comm", "stream"],
        "broadcast": [*COLLECTIVE, "count", "datatype", "root", "comm", "stream"],
        "reduce": [*COLLECTIVE, "count", "datatype", "op", "root", "comm", "stream"],
        "send": ["sendbuff", "count", "datatype", "peer", "comm", "stream"],
        "recv": ["recvbuff", "count", "datatype", "peer", "comm", "stream"],
        "comm_init_rank": ["nranks", "comm_id", "rank"],
        "comm_init_rank_config": ["nranks", "comm_id", "rank", "config"],
        "comm_split": ["comm", "color", "key", "config"],
        "comm_shrink": ["comm", "exclude_ranks_list", "exclude_ranks_count", "config", "shrink_flags"],
        "comm_revoke": ["comm", "revoke_flags"],
        "comm_get_async_error": ["comm"],
        "get_last_error": ["comm"],
        "comm_abort": ["comm"],
        "comm_destroy": ["comm"],
        "get_unique_id": [],
        "group_start": [],
        "group_end": [],
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(bindings, name)).parameters) == parameters
    config = bindings.Config()
    config.blocking = 0
    assert config.ptr
    bindings.check_status(nvidia.IN_PROGRESS)  # raises nothing
    try:
        version = nvidia.version()
    except NotSupportedError:
        pytest.skip("libnccl is not installed")
    assert version > 20000
    assert len(nvidia.unique_id()) == 128
