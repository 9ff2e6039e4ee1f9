"""CUDA tensors through torch.multiprocessing, where accelrt is torch's allocator: each scenario in processes
of its own (torch_sharing.py)."""

import re
from pathlib import Path

import pytest
import torch_alone
from torch_alone import standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]
PROGRAM = Path(torch_alone.__file__).with_name("torch_sharing.py")  # which imports torch
NAMES = re.findall(r"^@scenario\ndef (\w+)\(", PROGRAM.read_text(), re.MULTILINE)


def run(kind, name, **environment):
    print(torch_alone.run(str(PROGRAM), kind, name, **environment))


def test_every_scenario_is_found():
    assert len(NAMES) == PROGRAM.read_text().count("@scenario\n") > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name):
    run("gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", NAMES)
def test_on_the_standin(standin, name):
    run("standin", name, STANDIN_DEVICES="2" if name.startswith("a_device") else "1", **standin)


@pytest.mark.host
def test_a_compiler_with_an_archive_of_the_cpp_library_adds_no_second_one(standin, tmp_path):
    compiler = {
        "CXX": "g++ -static-libstdc++",
        "XDG_CACHE_HOME": str(tmp_path),
        "ACCELRT_TORCH_OBJECT": "compiled",
    }
    run(
        "standin", "past_the_cache_nothing_is_shared", **standin, **compiler
    )  # its error is formatted by a stream
    (made,) = tmp_path.rglob("*.so")
    assert b"_ZTVSt13basic_ostream" not in made.read_bytes()
