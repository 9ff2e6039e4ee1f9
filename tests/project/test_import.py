"""Importing accelrt touches nothing: no driver, no NVML, no numpy."""

from pathlib import Path

import pytest
from child import run_code, run_python

import accelrt

pytestmark = pytest.mark.own_process
ROOT = Path(accelrt.__file__).parent


def test_import_opens_no_driver_library_and_loads_no_numpy():
    out = run_code(
        "import sys, accelrt\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('libcuda.so', 'libnvidia-ml', 'libcudart') if name in maps])\n"
        "print([name for name in ('numpy', 'cuda.bindings.driver', 'cuda.bindings.nvml', 'torch') "
        "if name in sys.modules])\n"
    )
    assert out.split("\n")[:2] == ["[]", "[]"]


def test_import_starts_no_thread_and_initialises_nothing():
    out = run_code(
        "import os, accelrt\nprint(len(os.listdir('/proc/self/task')), accelrt.is_initialized())",
        ACCELRT_DRIVER="host",
    )
    assert out.split() == ["1", "False"]


IN_A_SECOND_INTERPRETER = """
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    run, second = interpreters.exec, interpreters.create("legacy")
else:
    import _xxsubinterpreters as interpreters
    run, second = interpreters.run_string, interpreters.create(isolated=False)
IMPORT = "try: import accelrt\\nexcept ImportError as error: print(error)"
{first}
run(second, IMPORT)
interpreters.destroy(second)
import accelrt
print(accelrt.zeros(4, "u1").numpy().sum(), accelrt.memory_allocated())
"""


@pytest.mark.parametrize("first", ["", "import accelrt"])
def test_a_second_interpreter_is_refused_in_words_and_harms_nothing(first):
    """Whichever imports first: a second interpreter's import would leave the main one without accelrt."""
    told, used = run_code(IN_A_SECOND_INTERPRETER.format(first=first), ACCELRT_DRIVER="host").splitlines()
    assert "by the main interpreter of a process alone" in told
    assert "WSGIApplicationGroup" in told
    assert used == "0 0"


def test_a_program_never_imports_the_table_that_is_for_tests():
    out = run_code(
        "import sys, accelrt\ngraph = accelrt.CUDAGraph()\n"
        "with accelrt.graph(graph):\n    accelrt.Buffer(64).fill(1)\n"
        "graph.replay()\naccelrt.synchronize()\n"
        "print('accelrt.driver.registry' in sys.modules, 'accelrt.driver.testing' in sys.modules)",
        ACCELRT_DRIVER="host",
    )
    assert out.split() == ["True", "False"]


def test_counting_devices_initialises_nothing():
    out = run_code(
        "import accelrt\nbefore = accelrt.device_count()\n"
        "print(accelrt.is_available() == (before > 0), accelrt.is_initialized())\n"
        "from accelrt.driver import registry\nprint(registry.driver_name())",
        ACCELRT_DRIVER="cuda",
    )
    assert out.split() == ["True", "False", "sentinel"]


def test_without_an_nvidia_driver_use_says_how_to_ask_for_the_host_device():
    out = run_code(
        "import accelrt\n"
        "if accelrt.is_available():\n"
        "    print('host')\n"
        "else:\n"
        "    try:\n"
        "        accelrt.Stream()\n"
        "    except accelrt.DriverNotFoundError as error:\n"
        "        print(error)\n",
        ACCELRT_DRIVER="auto",
    )
    assert "host" in out


def test_import_brings_no_module_of_pythons_but_atexit():
    out = run_code(
        "import sys\nbefore = set(sys.modules)\nimport accelrt\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
        "print(sum(name.startswith('accelrt') for name in sys.modules))\n"
    )
    brought, ours = out.splitlines()
    cythons = {name for name in brought.split() if "cython" in name}
    # What the interpreter itself imported, in a virtual environment say, is not counted.
    assert set(brought.split()) - cythons <= {"accelrt", "atexit"}
    assert int(ours) <= 55


@pytest.mark.parametrize(
    "use", ["accelrt.readings", "accelrt.DeviceProperties", "accelrt.CUDAGraph", "accelrt.use_mem_pool"]
)
def test_what_few_programs_need_is_imported_when_it_is_asked_for(use):
    found = run_code(f"import accelrt\nname = {use!r}.partition('.')[2]\nprint(name in vars(accelrt))\n{use}")
    assert found == "False\n"


def test_no_module_hides_a_function_of_its_name():
    code = (
        "import accelrt, importlib, pkgutil\n"
        "for found in pkgutil.walk_packages(accelrt.__path__, 'accelrt.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
        "for name in accelrt.__all__: getattr(accelrt, name)\n"
        "kinds = {name: type(getattr(accelrt, name)).__name__ for name in ('stream', 'device', 'graph')}\n"
        "print(kinds)\n"
    )
    assert "module" not in run_code(code)


def test_importing_everything_and_listing_names_find_all_that_is_public():
    code = (
        "import accelrt\nassert set(accelrt.__all__) <= set(dir(accelrt))\n"
        "from accelrt import *\nprint([name for name in accelrt.__all__ if name not in globals()])\n"
    )
    assert run_code(code) == "[]\n"


def test_values_of_public_classes_can_be_pickled():
    code = (
        "import accelrt, copy, pickle\nfacts = accelrt.get_device_properties(0)\n"
        "for one in (facts, accelrt.MemoryInfo(4, 1, 2, 1), accelrt.PowerLimits(1, 2, 3, 4, 5),"
        " accelrt.GraphNode(1, 'fill', ())):\n"
        "    assert pickle.loads(pickle.dumps(one)) == one == copy.copy(one), one\nprint('equal')\n"
    )
    assert run_code(code) == "equal\n"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'accelrt' has no attribute 'nosuch'"):
        _ = accelrt.nosuch


def test_source_that_is_not_compiled_says_what_hides_what(tmp_path):
    package = tmp_path / "accelrt"
    package.mkdir()
    for name in ("__init__.py", "errors.py", "status.pxd"):
        (package / name).write_text((ROOT / name).read_text())
    # Without what an editable install puts in its way.
    done = run_python("-S", "-c", "import accelrt", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {package} is accelrt's source, not compiled for this Python")
    assert last.endswith(
        "start Python in another directory, or compile this one with 'python -m pip install -e .'"
    )


def test_every_public_name_is_there():
    assert [name for name in accelrt.__all__ if not hasattr(accelrt, name)] == []
    assert [name for name in accelrt.memory.__all__ if not hasattr(accelrt.memory, name)] == []


def test_tools_have_their_public_names():
    out = run_code(
        "import accelrt, accelrt.traces, accelrt.viewer.html_page\n"
        "from accelrt.publish import Published, published\nfrom accelrt.traces import load\n"
        "from accelrt.tools import publish, traces\n"
        "print(accelrt.traces.load is load is traces.load, published is publish.published)\n"
        "print(set(publish.__all__) <= set(dir(accelrt.publish)))\n"
        "print(accelrt.viewer.html_page.write_page.__name__)"
    )
    assert out.split() == ["True", "True", "True", "write_page"]
