"""Runs the scenarios of torch_whole.py and torch_scenarios.py on the stand-in, for several versions of torch.

    python tests/helpers/torch_versions.py [--only NAME] FOLDER...

A folder holds what a wheel of torch holds ("unzip torch-2.14.1-*.whl -d FOLDER"), and nothing of NVIDIA's:
every function of NVIDIA's libraries that this torch mentions and the stand-in lacks is one that fails, in
libraries that are generated.  What torch needs of Python (typing_extensions, sympy, ...) comes from
PYTHONPATH.  The way to torch's allocator is that of ACCELRT_TORCH_OBJECT.  A row for each folder is printed
at the end: how many scenarios went well, and which did not; those of KNOWN are no error.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cudart_standin
import torch_scenarios
import torch_whole
from torch_setting import KERNELS, SCENARIOS

HELPERS = Path(__file__).parent
OF_NVIDIA = re.compile(r"(__)?(cu|nccl|nv)[A-Za-z]\w*")
LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+")
TELLING = ("cuptiGetResultString", "cuptiGetErrorMessage")  # (code, where a text goes)
POOL_STAYS = "torch says that the failed capture ended, and never that its pool is free"
LAST_USER = "torch ends the process where a MemPool dies before the graphs in its pool"
NO_SPLIT = "torch's MemPool has no argument no_split"
KNOWN = {  # what a minor version of torch itself does otherwise
    **{(minor, "graphs_in_a_mem_pool"): LAST_USER for minor in (8, 9)},
    **{(minor, "a_mem_pool_refuses_what_it_cannot_do"): NO_SPLIT for minor in (8, 9)},
    (13, "a_capture_that_fails_leaves_nothing"): POOL_STAYS,
    (13, "a_capture_that_fails_on_another_thread_is_seen"): POOL_STAYS,
    (13, "everything_is_given_back_in_the_end"): POOL_STAYS,
}
SECONDS = 900  # for all of a version


def lines_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def write_stubs(libraries, folder):
    """Compiles what stands for NVIDIA's libraries: empty ones of their names, and one of all functions."""
    symbols = [line.split() for line in lines_of("nm", "-D", *libraries)]
    names = {fields[-1].partition("@")[0] for fields in symbols if fields and fields[-2:-1] == ["U"]}
    own = {fields[2].partition("@")[0] for fields in symbols if len(fields) == 3}
    ours = (*cudart_standin.DIRECT, *cudart_standin.HANDLERS, *cudart_standin.SILENT.split())
    own |= {f"cuda{name}" for name in ours}
    own |= {"cudaGetErrorString", "cudaGetErrorName"}
    telling = 'long {}(long code, const char **text) {{ *text = "of the stand-in"; return 0; }}'
    lines = []
    for name in sorted(name for name in names - own if OF_NVIDIA.fullmatch(name)):
        code = 0 if name.startswith("__cuda") else 801 if name.startswith("cu") else 1
        failing = f"long {name}(void) {{ return {code}; }}"
        lines.append(telling.format(name) if name in TELLING else failing)
    path = Path(folder, "nvidia_stub.so")
    cudart_standin.compile_library(path, "\n".join(lines), ["-fno-builtin"])
    needed = {match[0] for line in lines_of("objdump", "-p", *libraries) if (match := LIBRARY.search(line))}
    for soname in sorted(needed - {"libcuda.so.1"}):
        cudart_standin.compile_library(Path(folder, soname), "", [f"-Wl,-soname,{soname}"])
    return path


def environment_for(torch, folder):
    """Of a process in which this torch runs on the stand-in."""
    settings = cudart_standin.build(folder)
    stub = write_stubs(sorted(Path(torch, "torch", "lib").glob("*.so")), folder)
    paths = [str(HELPERS), str(HELPERS.parents[1]), str(torch), *filter(None, sys.path)]
    settings["LD_PRELOAD"] = f"{settings['LD_PRELOAD']}:{stub}"
    settings |= {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "2", "PYTHONPATH": os.pathsep.join(paths)}
    return os.environ | settings


FORKS = """
import json, os, sys, tempfile, traceback
import torch, torch_whole
import accelrt.interop.torch
for name in sys.argv[1:]:
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv[1:] = ["standin", name]
            torch_whole.main("standin", name)
            break
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        print(json.dumps({"name": name, "status": status, "told": output.read()}), flush=True)
"""


def rows_of(environment, count, *command):
    """The lines of JSON that a program writes, and a last one if it ends otherwise than well."""
    done = subprocess.run(
        [sys.executable, "-P", *command], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    yield from rows
    if done.returncode or len(rows) != count or "accelrt:" in done.stderr:
        yield {"name": command[0], "status": done.returncode, "told": done.stderr, "wrong": done.stderr}


def outcomes(environment, only):
    """(name, what went wrong or None) of each scenario; those of torch_whole.py each in a fork."""
    names = [name for name in torch_whole.ALONE if name not in torch_whole.KERNELS and only in name]
    for row in rows_of(environment, len(names), "-c", FORKS, *names):
        good = row["status"] == 0 and row["told"].endswith("done\n") and "accelrt:" not in row["told"]
        yield row["name"], None if good else f"{row['told']}exit status {row['status']}"
    names = [name for name in SCENARIOS if name not in KERNELS and only in name]
    for row in rows_of(environment, len(names), torch_scenarios.__file__, "standin", *names) if names else ():
        yield row["name"], row["wrong"]


def run(torch, only):
    """(version, how many went well, the names of the others, what is known of others)."""
    failed, known, count = [], [], 0
    with tempfile.TemporaryDirectory(prefix="accelrt-torch-") as folder:
        environment = environment_for(torch, folder)
        ask = "import torch; print(torch.__version__, torch.version.git_version)"
        done = subprocess.run(
            [sys.executable, "-P", "-c", ask], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return str(torch), 0, [done.stderr.strip()], []
        version = done.stdout.strip()
        for name, wrong in outcomes(environment, only):
            reason = KNOWN.get((int(version.split(".")[1]), name))
            if wrong is None:
                count += 1
            elif reason is not None:
                known.append(f"{name} ({reason})")
            else:
                failed.append(name)
                print(f"--- {version} {name}\n{wrong}", flush=True)
    return version, count, failed, known


def main(arguments):
    only = ""
    if arguments[:1] == ["--only"]:
        only, arguments = arguments[1], arguments[2:]
    if not arguments:
        sys.exit(__doc__)
    rows = [run(Path(each).resolve(), only) for each in arguments]
    for version, count, failed, known in rows:
        others = [f"; not {name}" for name in failed] + [f"; otherwise {text}" for text in known]
        print(f"{version}: {count} scenarios went well", *others, sep="")
    return int(any(failed or not count for _, count, failed, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
