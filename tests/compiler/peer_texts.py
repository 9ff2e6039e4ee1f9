"""Kernels of other libraries' own tests: how many compile unchanged and compute what those tests expect.

    python tests/compiler/peer_texts.py PATH... [--driver host] [--seconds 120] [--json FILE]

PATH is a file of a checkout, or a folder of which every Python file is read: of CuPy
tests/cupy_tests/core_tests/test_raw.py and test_elementwise.py, of cuda-python cuda_core/tests and
cuda_core/examples.  Texts are read there, by the files' syntax; nothing of them is run but the kernels.
peer_checks.py has what each kernel is expected to compute.  Each kernel runs in a process of its own.
"""

import argparse
import ast
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
NAME = re.compile(r"[A-Za-z_]\w*")
# What the tests put into texts that are patterns, by the expression or the mark that stands for it.
FILLED = {
    "sleep_duration_ms": "20",
    "nargs": "2",
    "args_str": "int p_0, int p_1",
    "$cond_type_str": "unsigned int",
}


RUN = ("counted", "broken")  # groups of kernels that are tried
UNRUN = (False, False, "")
NOT_COUNTED = {
    "not CUDA": "not counted: no CUDA compiler takes it, so that the text is compiled without it",
    "broken": "not counted: broken on purpose",
    "unread": "not counted: it is put together of what is known only at run time",
}


class Kernel(NamedTuple):
    """A kernel's definition in a text.

    Attributes:
        key: str, the name and the types of the parameters, "scale(T*,float)".
        name: str.
        begin, end: int, where its definition lies in the text without comments.
    """

    key: str
    name: str
    begin: int
    end: int


class Text(NamedTuple):
    """A text of a checkout's file; line is where it stands there."""

    path: str
    line: int
    code: str
    kernels: tuple[Kernel, ...]
    companions: tuple[str, ...]  # texts of the same file that define device functions only


class Unread(NamedTuple):
    """A text that a checkout's file puts together of what is known only when it runs."""

    path: str
    line: int


class Elementwise(NamedTuple):
    """A call of ElementwiseKernel with texts."""

    path: str
    line: int
    arguments: tuple[str, ...]


# --- reading a checkout ----------------------------------------------------------------------------------


def text_of(node, names):
    """The text that an expression is; None where it is no text, or one that is not known before it runs."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part, names) for part in node.values]
        return None if None in parts else "".join(parts)
    if isinstance(node, ast.FormattedValue):
        return FILLED.get(ast.unparse(node.value))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left, names), text_of(node.right, names)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace":
        text, old = text_of(node.func.value, names), text_of(node.args[0], names)
        return None if text is None or old not in FILLED else text.replace(old, FILLED[old])
    return None


def texts_in(node, names, texts):
    """Adds (line, text) of each text of CUDA C below a node; names are those that are texts there.

    The text is None where it is known only when the file runs.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names = dict(names)
    for child in ast.iter_child_nodes(node):
        text = text_of(child, names) if isinstance(child, ast.expr) else None
        if text is None and isinstance(child, ast.JoinedStr):
            if "__global__" in ast.unparse(child):
                texts.append((child.lineno, None))
        elif text is None:
            texts_in(child, names, texts)
        elif not isinstance(child, ast.Name) and ("__global__" in text or "__device__" in text):
            texts.append((child.lineno, text))
        if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            text = text_of(child.value, names)
            if text is not None:
                names[child.targets[0].id] = text


def closing(code, at, pair):
    """Where the bracket at a place is closed; the end of the text where it is not."""
    depth = 0
    for place in range(at, len(code)):
        depth += (code[place] == pair[0]) - (code[place] == pair[1])
        if depth == 0:
            return place
    return len(code)


def kernels_of(code):
    """The kernels that a text defines; comments are left out of it before."""
    kernels = []
    for match in re.finditer(r"__global__", code):
        at = code.find("(", match.end())
        while at > 0 and re.search(r"__(launch_bounds|cluster_dims|maxnreg)__\s*$", code[:at]):
            at = code.find("(", closing(code, at, "()") + 1)
        end = closing(code, at, "()") if at > 0 else len(code)
        body = re.match(r"\s*\{", code[end + 1 :])
        words = NAME.findall(code[match.end() : at])
        if body and words and not re.search(r"[;{}$=]", code[match.end() : at]):
            types = (
                ",".join(map(type_of, code[at + 1 : end].split(","))) if code[at + 1 : end].strip() else ""
            )
            before = re.match(r"(?:.*[;{}]|.*^\s*#[^\n]*\n)?", code[: match.start()], re.S | re.M)
            begin = before.end()
            last = closing(code, end + body.end(), "{}")
            kernels.append(Kernel(f"{words[-1]}({types})", words[-1], begin, last + 1))
    return tuple(kernels)


def type_of(parameter):
    """A parameter's type without its name, const and spaces."""
    words = re.findall(r"\w+|\*|&|<|>|::", parameter)
    words = [word for word in words if word not in ("const", "__restrict__")]
    return "".join(words[:-1])


def read_file(path):
    """The texts and elementwise kernels of a file, each text once."""
    tree = ast.parse(path.read_text())
    pieces = []
    texts_in(tree, {}, pieces)
    unread = [Unread(str(path), line) for line, text in pieces if text is None]
    pieces = [(line, COMMENT.sub(" ", text), text) for line, text in pieces if text is not None]
    companions = tuple(text for _, plain, text in pieces if "__global__" not in plain and "{" in plain)
    texts = [
        Text(str(path), line, text, kernels_of(plain), companions)
        for line, plain, text in pieces
        if "__global__" in plain
    ]
    unread += [Unread(text.path, text.line) for text in texts if not text.kernels]
    texts = [text for text in texts if text.kernels]
    calls = [
        Elementwise(str(path), node.lineno, tuple(argument.value for argument in node.args))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("ElementwiseKernel")
        and all(isinstance(argument, ast.Constant) for argument in node.args)
    ]
    return [*texts, *unread, *calls]


def read_checkouts(paths):
    """The texts of files and folders; one that several files have is taken once."""
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    texts, seen = [], set()
    for text in (text for file in files for text in read_file(file)):
        content = text.code if isinstance(text, Text) else text[2:] or text
        if content not in seen:
            seen.add(content)
            texts.append(text)
    return texts


def without(code, kernels):
    """A text, without comments, in which some of its kernels are not."""
    plain = COMMENT.sub(" ", code)
    for kernel in sorted(kernels, key=lambda each: -each.begin):
        plain = plain[: kernel.begin] + plain[kernel.end :]
    return plain


# --- running a kernel ------------------------------------------------------------------------------------


def run_one(request):
    """What became of one kernel, or of one elementwise kernel; prints it."""
    import peer_checks

    if "elementwise" in request:
        answer = peer_checks.run_elementwise(tuple(request["elementwise"]))
    else:
        answer = peer_checks.run_kernel(
            request["code"], request["key"], request["keys"], request["companions"]
        )
    print(json.dumps(answer))


def ask(request, seconds):
    """(compiled, agreed, why not) of a request, from a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--request"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return False, False, f"no end after {seconds:.0f} s"
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
        return False, False, last
    compiled, agreed, why = json.loads(lines[-1])
    failure = [line for line in done.stderr.splitlines() if line.startswith("accelrt:")]
    return compiled, agreed, f"{why} ({failure[0]})" if failure else why


def results_of(texts, seconds, jobs):
    """(text, kernel's key, group, compiled, agreed, why not) of each kernel; group: "counted" or why not."""
    import peer_checks

    requests = []
    for text in texts:
        if isinstance(text, Unread):
            requests.append((text, "a text", "unread", None))
            continue
        if isinstance(text, Elementwise):
            requests.append((text, "ElementwiseKernel", "counted", {"elementwise": text.arguments}))
            continue
        cut = [kernel for kernel in text.kernels if peer_checks.group_of(kernel.key, text.code) == "not CUDA"]
        code = without(text.code, cut) if cut else text.code
        for kernel in text.kernels:
            group = peer_checks.group_of(kernel.key, text.code)
            keys = [other.key for other in text.kernels if other not in cut]
            request = {"code": code, "key": kernel.key, "keys": keys, "companions": text.companions}
            requests.append((text, kernel.key, group, request))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        answers = pool.map(lambda each: ask(each[3], seconds) if each[2] in RUN else UNRUN, requests)
        return [
            (text, key, group, *answer)
            for (text, key, group, _), answer in zip(requests, answers, strict=True)
        ]


def print_table(results):
    """Each text with its kernels, then each file's and all files' counts; returns the counts of all."""
    totals = {}
    for text, key, group, compiled, agreed, why in results:
        if group == "counted":
            counts = totals.setdefault(text.path, [0, 0, 0])
            counts[0] += 1
            counts[1] += compiled
            counts[2] += agreed
        state = NOT_COUNTED.get(group) or ("agrees" if agreed else "compiles" if compiled else "FAILS")
        if group == "broken" and compiled:
            state = "COMPILES, though broken on purpose"
        print(
            f"{Path(text.path).name}:{text.line}: {key}: {state}" + (f": {why}" if why and not agreed else "")
        )
    print(f"{'file':45} {'kernels':>8} {'compiled':>9} {'agreed':>7} {'rate':>6}")
    together = [sum(column) for column in zip(*totals.values(), strict=True)] or [0, 0, 0]
    for path, (kernels, compiled, agreed) in [*totals.items(), ("all", together)]:
        called = "/".join(Path(path).parts[-3:])[-45:]
        print(f"{called:45} {kernels:8} {compiled:9} {agreed:7} {agreed / max(kernels, 1):6.0%}")
    return together


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders of checkouts")
    parser.add_argument("--driver", default=os.environ.get("ACCELRT_DRIVER", "host"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="for one kernel (120)")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--request", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.request:
        run_one(json.load(sys.stdin))
        return 0
    os.environ["ACCELRT_DRIVER"] = options.driver
    texts = read_checkouts(options.paths)
    results = results_of(texts, options.seconds, options.jobs)
    kernels, compiled, agreed = print_table(results)
    if options.json:
        rows = [(text.path, text.line, *rest) for text, *rest in results]
        Path(options.json).write_text(
            json.dumps({"all": [kernels, compiled, agreed], "kernels": rows}, indent=1)
        )
    return 0 if agreed == kernels else 1


if __name__ == "__main__":
    sys.exit(main())
