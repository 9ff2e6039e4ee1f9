"""The sections that threads pass by plain stores: who changes what they look at knows when all have left."""

import importlib
import os
import sys

import pytest
from child import run_python
from compiled import compile_extension

THREADS = 4


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sections")
    compile_extension("sections", folder)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("sections")
    sys.path.remove(str(folder))


@pytest.mark.parametrize("fenced", [False, True], ids=["membarrier", "fences"])
def test_nobody_is_inside_once_all_have_left(sections, fenced):
    wrong, passed, changes, made = sections.storm(THREADS, 150, 20000, fenced)
    assert wrong == 0
    assert passed
    assert changes
    assert made <= THREADS + 1  # a thread that ends leaves its slot to the next


def test_a_section_is_left_with_its_outermost(sections):
    # The last is another section, which who waits for the first does not wait for.
    assert sections.nest() == [(True, False), (True, False), (False, True), (True, True)]


REGISTERS = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import sections
told, go_on = [sections.registered()], threading.Event()
thread = threading.Thread(target=go_on.wait)
thread.start()
told.append(sections.registered(anew=True))
sections.nest()
told.append(sections.registered())
go_on.set()
print(told)
"""


def test_beside_other_threads_the_kernel_is_told_with_the_first_section(sections):
    """For then it waits for every processor, which an import is not to do."""
    folder = os.path.dirname(sections.__file__)
    assert run_python("-c", REGISTERS, folder).stdout == "[True, False, True]\n"


def test_a_child_that_is_forked_inside_leaves_the_section(sections):
    assert sections.fork_inside()
