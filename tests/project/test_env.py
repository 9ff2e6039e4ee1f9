"""The variables that accelrt reads: what each may be, and what is said of one that may not."""

import re
from pathlib import Path

import pytest
from child import run_code

import accelrt
from accelrt import env

pytestmark = pytest.mark.own_process

USE = """
import accelrt
try:
    accelrt.init(driver=None)
    print("well")
except ValueError as error:
    print(error)
"""
ARABIC_THREE = "\u0663"


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("ACCELRT_DEBUG", "x", "it may be 0, 1 or 2"),
        ("ACCELRT_DEBUG", "3", "it may be 0, 1 or 2"),
        ("ACCELRT_DEBUG", "-1", "it may be 0, 1 or 2"),
        ("ACCELRT_DEBUG", "2.0", "it may be 0, 1 or 2"),
        ("ACCELRT_PUBLISH", "maybe", "it may be 1, true, yes or on, and 0, false, no or off"),
        ("ACCELRT_PUBLISH", "2", "it may be 1, true"),
        ("ACCELRT_RECORD_STACKS", "1", "it may be none, python, all"),
        ("ACCELRT_HOST_DEVICES", ARABIC_THREE, "from 0 to 64"),
        ("ACCELRT_HOST_DEVICES", "65", "from 0 to 64"),
        ("ACCELRT_HOST_DEVICES", "1_0", "from 0 to 64"),
        ("ACCELRT_HOST_DEVICES", "+1", "from 0 to 64"),
        ("ACCELRT_HOST_DEVICES", "9" * 5000, "from 0 to 64"),
        ("ACCELRT_HOST_DELAY_US", "1e3", "from 0 to 1000000000"),
        ("ACCELRT_HOST_MEMORY", ARABIC_THREE + "GiB", "512MiB"),
        ("ACCELRT_HOST_MEMORY", "1 elephant", "512MiB"),
        ("ACCELRT_HOST_MEMORY", "4iB", "512MiB"),
        ("ACCELRT_HOST_MEMORY", "1MiB", "of 2 MiB or more"),
        ("ACCELRT_HOST_MEMORY", "-1GiB", "512MiB"),
        ("ACCELRT_DRIVER", "gpu", "auto, cuda, host"),
        ("ACCELRT_ALLOC_CONF", "colour:red", "is not a key"),
    ],
)
def test_what_is_not_allowed_is_named_with_what_is(name, text, allowed):
    out = run_code(USE, **({"ACCELRT_DRIVER": "host"} | {name: text}))
    assert out.startswith(name), out
    assert allowed in out
    assert repr(text)[1:7] in out


def test_an_unknown_sanitizer_setting_is_an_error_at_import():
    code = "try:\n    import accelrt\nexcept ValueError as error:\n    print(error)"
    out = run_code(code, ACCELRT_SANITIZE="maybe")
    assert out == "ACCELRT_SANITIZE='maybe' is not known; it may be 0, 1, raise or warn\n"


@pytest.mark.parametrize("name", sorted(env.VARIABLES))
def test_empty_is_not_set(name):
    assert (
        run_code(USE, **({"ACCELRT_DRIVER": "host"} | {name: "" if name != "ACCELRT_DRIVER" else "host"}))
        == "well\n"
    )


UNKNOWN = """
import warnings, accelrt
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        accelrt.init()
        accelrt.device_count()
print(*(str(each.message) for each in caught), sep="\\n")
"""


def test_a_variable_that_nothing_reads_is_told_once_with_the_nearest_that_is():
    others = {"ACCELRT_HOST_DEVISES": "3", "ACCELRT_ZZZZ": "1", "ACCELRT_TEST_SEED": "1"}
    out = run_code(UNKNOWN, **({"ACCELRT_DRIVER": "host", "ACCELRT_BUILD": "debug"} | others))
    assert out.splitlines() == [
        "ACCELRT_HOST_DEVISES is no variable of accelrt's and has no effect; ACCELRT_HOST_DEVICES is",
        "ACCELRT_ZZZZ is no variable of accelrt's and has no effect; `accelrt info` lists those that are",
    ]


@pytest.mark.parametrize(
    ("text", "publishes"),
    [("no", False), ("False", False), ("off", False), ("0", False), ("yes", True), ("1", True)],
)
def test_publishing_is_on_or_off(text, publishes, tmp_path):
    code = (
        "import accelrt\nfrom accelrt.tools import publish\n"
        "accelrt.init()\nprint(publish._writer is not None)"
    )
    out = run_code(code, ACCELRT_DRIVER="host", ACCELRT_PUBLISH=text, XDG_RUNTIME_DIR=str(tmp_path))
    assert out == f"{publishes}\n"


@pytest.mark.parametrize(
    ("text", "watches"), [("no", False), ("FALSE", False), ("on", True), ("Raise", True), ("warn", True)]
)
def test_the_race_detector_is_on_or_off(text, watches):
    code = "import accelrt.runtime.access as watch\nprint(watch.is_watching())"
    assert run_code(code, ACCELRT_SANITIZE=text) == f"{watches}\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64 * 10**6),
        ("1GB", 10**9),
        ("2 tb", 2 * 10**12),
        ("3000KB", 3 * 10**6),
        ("1GiB", 1 << 30),
        ("1g", 1 << 30),
        ("4096 KiB", 4 << 20),
        ("2097152B", 2 << 20),
        (" 2097152 ", 2 << 20),
    ],
)
def test_sizes_in_units_of_1000_and_of_1024(text, size):
    assert env.read_size("--memory", text) == size


def test_nothing_else_reads_them_from_the_environment():
    package = Path(accelrt.__file__).parent
    reads = re.compile(r"(getenv|environ(\.get)?)\W+\s*\"?ACCELRT_")
    sources = [path for ending in ("py", "pyx", "pxd") for path in package.rglob(f"*.{ending}")]
    assert sources
    assert [str(path) for path in sources if reads.search(path.read_text())] == []
