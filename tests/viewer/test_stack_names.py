"""What the page calls a stack: its innermost frame that is neither accelrt's nor the interpreter's."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import accelrt

DATA = Path(accelrt.__file__).parent / "tools" / "viewer" / "assets" / "data.js"
PROGRAM = """
const vm = require("vm"), fs = require("fs");
const [path, stacks] = [process.argv[1], JSON.parse(process.argv[2])];
const Recording = vm.runInNewContext(fs.readFileSync(path, "utf8") + "; Recording", {});
const told = stacks.map((stack) => {
  const made = Object.create(Recording.prototype);
  made.strings = stack.flatMap(([file, line, name]) => [file, name]);
  made.files = stack.map((_, index) => 2 * index);
  made.names = stack.map((_, index) => 2 * index + 1);
  made.lines = stack.map(([file, line]) => line);
  made.stackEnds = [0, stack.length];
  made.stackFrames = Int32Array.from(stack.keys());
  return made.brief(1);
});
console.log(JSON.stringify(told));
"""
INNER = [
    ["/x/accelrt/allocator/pool.cpython-311-x86_64-linux-gnu.so", 0, "+0x582e"],
    ["/usr/lib/libpython3.11.so.1.0", 0, "PyObject_Vectorcall"],
]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed, which runs the page's code")
def test_the_page_names_a_stack_by_who_called_accelrt():
    stacks = [
        [*INNER, ["/home/me/accelrt/train.py", 7, "step"], ["/home/me/main.py", 3, "main"]],
        [["/lib/libtorch.so", 0, "at::rand"], ["train.py", 7, "step"]],
        [["accelrt", 0, "empty_cache"], ["train.py", 8, "clear"]],
        INNER,
        [],
    ]
    done = subprocess.run(
        ["node", "-e", PROGRAM, str(DATA), json.dumps(stacks)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pool = "+0x582e  pool.cpython-311-x86_64-linux-gnu.so"
    assert json.loads(done.stdout) == [
        "step  train.py:7",
        "at::rand  libtorch.so",
        "clear  train.py:8",
        pool,
        "no stack",
    ]
