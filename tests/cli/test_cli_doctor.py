"""accelrt doctor, config and completion; and what is said of words that are nearly right."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from cli_command import ROOT, accelrt
from compiled import COMPILER

import accelrt as package
from accelrt.tools.cli import checks
from accelrt.tools.cli.sample import Device, Process, Sample

pytestmark = pytest.mark.own_process


def findings(status, **environment):
    done = accelrt("doctor", "--json", **environment)
    assert (done.returncode, done.stderr) == (status, "")
    answer = json.loads(done.stdout)
    assert answer["schema"] == 1
    assert answer["well"] == (status == 0)
    return {each["name"]: each for each in answer["checks"]}


@pytest.mark.host
def test_doctor_is_content_with_the_host_device():
    found = findings(0, ACCELRT_DRIVER="host", ACCELRT_HOST_DEVICES="3")
    assert found["driver"]["text"] == "host, ACCELRT_DRIVER=host; devices: 3"
    assert found["peer access"]["state"] == "ok"
    assert {"versions", "locked memory", "open files", "NUMA"} <= set(found)


@pytest.mark.host
def test_doctor_says_why_there_is_no_gpu_and_what_to_do():
    found = findings(1, ACCELRT_DRIVER=None, CUDA_VISIBLE_DEVICES="")
    failed = {name for name, each in found.items() if each["state"] == "fail"}
    assert {"driver", "visible devices"} <= failed
    assert all(found[name]["advice"] for name in failed)
    done = accelrt("doctor", ACCELRT_DRIVER=None, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "FAIL  driver" in done.stdout
    assert "-> " in done.stdout


@pytest.mark.gpu
def test_doctor_finds_the_gpu():
    found = findings(0)
    assert found["device nodes"]["state"] == "ok"
    assert found["kernel module"]["state"] == "ok"


def host(monkeypatch, **places):
    for name, path in places.items():
        monkeypatch.setattr(checks, name, path)
    return {"name": "cuda", "kernel_module": "580.1", "open": False, "problem": "none", "complaints": []}


def test_cards_permissions_and_nodes_are_read_from_the_system(monkeypatch, tmp_path):
    card, other = tmp_path / "pci" / "0000:41:00.0", tmp_path / "pci" / "0000:00:1f.0"
    for path, vendor, kind in ((card, "0x10de", "0x030200"), (other, "0x8086", "0x060100")):
        path.mkdir(parents=True)
        (path / "vendor").write_text(vendor + "\n")
        (path / "class").write_text(kind + "\n")
        (path / "numa_node").write_text("1\n")
    for number in range(2):
        (tmp_path / "nodes" / f"node{number}").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    (tmp_path / "huge").write_text("always madvise [never]\n")
    driver = host(
        *(monkeypatch,),
        CARDS=tmp_path / "pci",
        NODES=tmp_path / "nodes",
        DEVICES=tmp_path / "dev",
        HUGE=tmp_path / "huge",
    )
    (found,) = checks.card(driver)
    assert (found.state, found.text) == ("ok", "1 of NVIDIA's on the PCI bus: 0000:41:00.0")
    (found,) = checks.permissions(driver)
    assert (found.state, found.text) == ("fail", f"{tmp_path}/dev/nvidia-uvm is missing")
    (found,) = checks.nodes(driver)
    assert found.text == "2 nodes; 0000:41:00.0 at node 1"
    (found,) = checks.huge_pages(driver)
    assert found.state == "note"
    (found,) = checks.chosen(driver)
    assert (found.state, found.text) == ("fail", "does not open: none")


class Look:
    """In a Sampler's place: what two cards' processes hold."""

    held = ()

    def sample(self):
        devices = [Device("a", "card", 0), Device("b", "card", 1)]
        parts = [Process(pid, uuid, "me", "train.py", kind, memory) for pid, uuid, kind, memory in self.held]
        return Sample(0.0, devices, parts)


def test_processes_with_a_small_part_of_a_second_device_are_told(monkeypatch):
    monkeypatch.setattr(checks, "Sampler", Look)
    large, small = 40 << 30, 520 << 20
    Look.held = [
        *((1, "a", "compute", large), (2, "b", "compute", large), (2, "a", "compute", small)),
        *((3, "a", "compute", large), (3, "b", "compute", large), (4, "a", "graphics", 1 << 20)),
        *((5, "a", "compute", small), (5, "b", "compute", small), (6, "a", "compute", None)),
    ]
    (found,) = checks.contexts({"name": "cuda"})
    assert (found.name, found.state) == ("contexts", "note")
    assert "process 2 (train.py) holds 40" in found.text
    assert "little of 0 (520" in found.text
    assert "stray_contexts()" in found.advice
    Look.held = Look.held[:2]
    (found,) = checks.contexts({"name": "cuda"})
    assert (found.state, found.text[:11]) == ("ok", "2 processes")
    Look.held = ()
    assert not list(checks.contexts({"name": "cuda"}))
    assert not list(checks.contexts({"name": "host"}))


def test_config_says_where_things_are():
    done = accelrt("config", "--cflags", "--libs")
    assert (done.returncode, done.stderr) == (0, "")
    words = shlex.split(done.stdout)
    assert words[0] == f"-I{package.get_include()}"
    assert "-laccelrt" in words
    every = accelrt("config").stdout
    assert f"-I{sysconfig.get_path('include')}" in every
    assert package.get_library() in every


def build(tmp_path, flags):
    source = tmp_path / "program.c"
    body = "int device;\n    return accelrt_current_device(&device) == 0;"
    source.write_text(f"#include <accelrt.h>\nint main(void) {{\n    {body}\n}}\n")
    program = tmp_path / "program"
    subprocess.run([*COMPILER, str(source), "-o", str(program), *flags], check=True)
    return subprocess.run([program], check=False).returncode


def test_a_program_is_built_with_configs_flags(tmp_path):
    assert build(tmp_path, shlex.split(accelrt("config", "--cflags", "--libs").stdout)) == 0


def test_the_file_of_pkg_config_has_the_same_flags(tmp_path):
    folder = Path(accelrt("config", "--pkgconfig").stdout.strip())
    text = (folder / "accelrt.pc").read_text()
    assert f"Version: {package.__version__}\n" in text
    text = text.replace("${pcfiledir}", str(folder)).replace("${package}", f"{folder}/../..")
    flags = [
        word for line in re.findall(r"^(?:Cflags|Libs): (.*)$", text, re.M) for word in shlex.split(line)
    ]
    assert build(tmp_path, flags) == 0


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_cmake_finds_the_package(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(user C)\n"
        f"find_package(accelrt {package.__version__} REQUIRED)\n"
        "add_executable(program program.c)\ntarget_link_libraries(program accelrt::accelrt)\n"
        "add_executable(alone program.c)\ntarget_link_libraries(alone accelrt::static)\n"
    )
    (tmp_path / "program.c").write_text(
        "#include <accelrt.h>\n"
        "int main(void) { return accelrt_memory_allocated(0) || accelrt_api_version(); }\n"
    )
    root = accelrt("config", "--cmake").stdout.strip()
    environment = os.environ | {"CC": COMPILER[-1]}
    for words in (
        ["-S", tmp_path, "-B", tmp_path / "made", f"-Daccelrt_ROOT={root}"],
        ["--build", tmp_path / "made"],
    ):
        subprocess.run(["cmake", *words], check=True, env=environment, capture_output=True)
    for name, links in (("program", True), ("alone", False)):
        program = tmp_path / "made" / name
        assert subprocess.run([program], check=False).returncode == 0
        assert (b"libaccelrt.so" in program.read_bytes()) == links


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["inof"], "info"), (["info", "--jsno"], "--json"), (["demo", "--driver", "hots"], "host")],
)
def test_a_word_that_is_nearly_right_is_told(words, meant):
    done = accelrt(*words)
    assert done.returncode == 2
    assert f"did you mean '{meant}'?" in done.stderr


@pytest.mark.parametrize(("words", "called"), [("info all", "info"), ("tune offline", "tune offline")])
def test_a_command_is_named_that_refuses_its_arguments(words, called):
    done = accelrt(*words.split())
    assert done.returncode == 2
    assert f"usage: accelrt {called} [-h]" in done.stderr
    assert f"accelrt {called}: error: " in done.stderr


@pytest.mark.parametrize("word", ["zzz", "nonsense"])  # one is near a choice of another command's, "none"
def test_a_word_that_is_like_none_is_refused_as_before(word):
    done = accelrt(word)
    assert done.returncode == 2
    assert "did you mean" not in done.stderr


def test_completion_is_a_script_of_the_shell():
    pytest.importorskip("shtab", reason="shtab is not installed; pip install 'accelrt[cli]'")
    done = accelrt("completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    assert "doctor" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    assert (ROOT / "accelrt" / "tools" / "cli" / "commands" / "completion.py").exists()


def test_the_help_of_a_command_says_what_it_does_and_keeps_its_examples():
    done = accelrt("checkpoint", "--help")
    assert "\nHave a process let go of its GPUs, and" in done.stdout
    assert "\n    accelrt checkpoint PID --state         say which" in done.stdout
