"""What core/DESIGN.md says of forks and the end of the process, against what is registered."""

import json
import re
from pathlib import Path

import pytest
from child import in_own_process
from cli_command import accelrt as command

import accelrt
from accelrt.core import process
from accelrt.tools.cli.process_order import import_all

pytestmark = pytest.mark.own_process
ROOT = Path(accelrt.__file__).parent
CALLS = re.compile(
    r"\b(pthread_atfork|register_at_fork|atexit\.\w+|Py_AtExit|PyUnstable_AtExit|at_quick_exit"
    r"|PyGILState_Check)\("
)
# What only these may call.
ALLOWED = {
    "core/interpreter.pxd": {"PyGILState_Check"},  # says why it does not
    "core/process.pyx": {"pthread_atfork", "register_at_fork", "atexit.register", "atexit.unregister"},
    "runtime/lifetimes.pyx": {"Py_AtExit"},  # reports what the interpreter's end did not free
}

LOCK = re.compile(r"(?<![\w.])(?:threading\.)?(?:RLock|Lock|allocate_lock)\(\)")
# Locks of objects that are not ForkSafeLocks, each with why no child of a fork waits for it.
OF_OBJECTS = {
    "checkpoint_listener.py": "a child forgets the listener",
    "kernels/apart.py": "of one call, on whose thread the caller waits",
    "memory/reservation.pyx": "asked for once the pool was found, which a child does not have",
    "resources/resource.pyx": "a pool is refused in a child",
    "tools/cli/commands/export.py": "a command, which forks nothing",
}


def test_no_child_finds_a_lock_of_pythons_held():
    """Each is a ForkSafeLock, or a module's that a function of the list makes anew, or says why not."""
    wrong = {}
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.pyx")]:
        name = str(path.relative_to(ROOT))
        lines = [line for line in path.read_text().splitlines() if LOCK.search(line) and "=" in line]
        of_objects = [line for line in lines if "." in line.split("=")[0].split(":")[0]]
        of_modules = [line for line in lines if line not in of_objects]
        at_import = sum(len(LOCK.findall(line)) for line in of_modules if not line.startswith(" "))
        renewed = sum(len(LOCK.findall(line)) for line in of_modules if line.startswith(" "))
        if renewed < at_import or (of_objects and name not in OF_OBJECTS and "testing/" not in name):
            wrong[name] = lines
    assert wrong == {}


def test_nothing_is_registered_elsewhere():
    found = {}
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd", ".pxi", ".h", ".hpp"):
            calls = set(CALLS.findall(path.read_text()))
            if calls:
                found[str(path.relative_to(ROOT))] = calls
    assert found == ALLOWED


@in_own_process
def test_the_page_lists_what_is_registered():
    import_all()
    page = (ROOT / "core" / "DESIGN.md").read_text()
    for name, rows in (("fork", fork_rows()), ("end", exit_rows())):
        wanted = "\n".join(rows)
        assert wanted in page, f"core/DESIGN.md: the table of the {name} is\n{wanted}"


def fork_rows():
    names = {}
    for rank, name, language, phases in process.registered_at_fork():
        locks = " (locks)" if "prepare" in phases else ""
        names.setdefault((rank, language), []).append(f"`{name}`{locks}")
    cells = {key: ", ".join(listed) for key, listed in names.items()}
    return [
        f"| {rank} | {why} | {cells.get((rank, 'C'), '')} | {cells.get((rank, 'Python'), '')} |"
        for rank, why in process.FORK_ORDER
    ]


def exit_rows():
    names = {}
    for rank, name in process.registered_at_exit():
        names.setdefault(rank, []).append(f"`{name}`")
    return [f"| {rank} | {why} | {', '.join(names[rank])} |" for rank, why in process.EXIT_ORDER]


@in_own_process
def test_every_rank_is_used_and_every_name_is_a_modules():
    import_all()
    entries = [entry[:2] for entry in (*process.registered_at_fork(), *process.registered_at_exit())]
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.rglob("*.py*")
        if path.is_file()
    }
    # A module with two parts puts a name behind its own.
    assert [name for _, name in entries if not {name, name.rpartition(".")[0]} & modules] == []
    assert {rank for rank, _ in entries} == {rank for rank, _ in (*process.FORK_ORDER, *process.EXIT_ORDER)}


def test_the_command_prints_the_lists():
    done = command("info", "--process", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    ranks = [rank for rank, _ in process.FORK_ORDER]
    for language in ("C", "Python"):
        listed = [
            (ranks.index(entry["rank"]), entry["module"])
            for entry in found["fork"]
            if entry["language"] == language
        ]
        assert listed == sorted(listed) != []
    assert [entry["module"] for entry in found["exit"]][:2] == ["nccl.process_end", "runtime.lifetimes"]
    text = command("info", "--process").stdout
    for entry in (*found["fork"], *found["exit"]):
        assert re.search(rf"(?m)^  {entry['rank']} +{entry['module']}\b", text)
