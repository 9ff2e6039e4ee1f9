"""accelrt.nvtx: what a tool hears, and that nothing is done where none listens."""

import shutil
import subprocess
from pathlib import Path

import pytest
from child import run_code

pytestmark = pytest.mark.own_process
SOURCES = Path(__file__).parents[1] / "helpers" / "sources"

LISTENING = "from nvtx_standin import CALLS as calls, install; install(); from accelrt import nvtx\n"
SILENT = "import sys; sys.modules['nvtx'] = None; from accelrt import nvtx\n"


def run(code, **environment):
    paths = str(SOURCES.parent)
    return run_code(f"import sys; sys.path.insert(0, {paths!r})\n{code}", **environment)


def test_a_tool_hears_marks_and_ranges():
    out = run(
        LISTENING + "nvtx.mark('a'); print(nvtx.range_push('b'), nvtx.range_push('c'))\n"
        "print(nvtx.range_pop(), nvtx.range_pop(), nvtx.range_pop())\n"
        "nvtx.range_end(nvtx.range_start('d'))\nprint(nvtx.is_listening(), *calls, sep='\\n')\n"
    )
    assert out.splitlines() == [
        "0 1",
        "1 0 -1",
        "True",
        "('mark', None, 'a', None, None, None)",
        "('push', None, 'b')",
        "('push', None, 'c')",
        *["('pop', None)"] * 3,
        "('start', None, 'd')",
        "('end', None, 7)",
    ]


def test_a_range_is_a_context_and_a_decorator_and_ends_with_an_error():
    out = run(
        LISTENING + "with nvtx.range('step {} {b}', 3, b=4): pass\n"
        "try:\n    with nvtx.range('{}'): 1 / 0\nexcept ZeroDivisionError: pass\n"
        "@nvtx.range('f')\ndef f(x): return x + 1\n"
        "print(f(1), f(2), f.__name__, [call[-1] for call in calls if call[0] == 'push'], len(calls))\n"
    )
    assert out.split("\n")[0] == "2 3 f ['step 3 4', '{}', 'f', 'f'] 8"


def test_a_domain_has_its_own_ranges_and_attributes():
    out = run(
        LISTENING + "domain = nvtx.get_domain('mine')\n"
        "domain.mark('a', color='red', category='io', payload=3)\n"
        "print(nvtx.range_push('x'), domain.range_push('y'), domain is nvtx.get_domain('mine'), domain)\n"
        "print(calls[0])\n"
        "try:\n    nvtx.get_domain('')\nexcept ValueError as error: print(error)\n"
        "try:\n    nvtx.Domain('x')\nexcept TypeError as error: print(error)\n"
    )
    assert out.splitlines() == [
        "0 0 True <accelrt.nvtx.Domain 'mine'>",
        "('mark', 'mine', 'a', 'red', 'io', 3)",
        "name is empty; a domain has a name, and marks without one are accelrt.nvtx.mark's",
        "a Domain is made by accelrt.nvtx.get_domain(name)",
    ]


def test_ranges_are_counted_by_thread():
    out = run(
        LISTENING + "import threading\nnvtx.range_push('a')\nseen = []\n"
        "thread = threading.Thread(target=lambda: seen.append(nvtx.range_push('b')))\n"
        "thread.start(); thread.join()\nprint(seen, nvtx.range_push('c'))\n"
    )
    assert out.split("\n")[0] == "[0] 1"


def test_without_the_package_nothing_is_done_nor_formatted():
    out = run(
        SILENT + "print(nvtx.mark('a'), nvtx.range_push('b'), nvtx.range_pop(), nvtx.range_start('c'))\n"
        "with nvtx.range('{missing}', 1): print(nvtx.is_listening())\n"
        "def f(): return 5\nprint(nvtx.range('f')(f) is f, nvtx.get_domain('d').range_push('e'))\n"
    )
    assert out.splitlines() == ["None -2 -2 0", "False", "True -2"]


def test_a_tool_that_hears_nothing_is_told_once():
    out = run(
        "import warnings\nwarnings.simplefilter('error')\n" + SILENT + "for _ in range(2):\n"
        "    try: nvtx.mark('a')\n    except RuntimeWarning as warning: print(warning)\n",
        NVTX_INJECTION64_PATH="/opt/tool.so",
    )
    assert "tool.so" in out
    assert "install accelrt[nvtx]" in out


INJECTION = """
#include <stdio.h>
#include <stdint.h>
#include <stddef.h>
/* The tables of NVTX version 3: nvtxTypes.h, NvtxExportTableCallbacks, the second core module. */
typedef void (*function)(void);
struct table { size_t size; int (*get)(int module, function **out[], unsigned *out_size); };
struct event { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color;
               int32_t payload_type, reserved; uint64_t payload; int32_t message_type; const char *message; };
static int depth;
static char names[64][64];
static intptr_t count;
static void *keep(void *domain, const char *name) {
    (void)domain;
    snprintf(names[++count], 64, "%s", name);
    return (void *)count;
}
static const char *text(const struct event *e) {
    return e->message_type == 3 ? names[(intptr_t)e->message] : e->message;
}
static void mark(void *domain, const struct event *e) {
    (void)domain;
    printf("mark %s\\n", text(e));
    fflush(stdout);
}
static int push(void *domain, const struct event *e) {
    (void)domain;
    printf("push %s\\n", text(e));
    fflush(stdout);
    return depth++;
}
static int pop(void *domain) { (void)domain; printf("pop\\n"); fflush(stdout); return --depth; }
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*tables)(uint32_t)) {
    const struct table *callbacks = tables(1);
    function **entries = NULL;
    unsigned size = 0;
    if (!callbacks || !callbacks->get(5, &entries, &size) || size < 12)
        return 0;
    *entries[1] = (function)mark;
    *entries[4] = (function)push;
    *entries[5] = (function)pop;
    *entries[10] = (function)keep;
    return 1;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_real_tool_hears_what_the_package_tells_it(tmp_path):
    pytest.importorskip("nvtx", reason="the nvtx package is not installed")
    (tmp_path / "tool.c").write_text(INJECTION)
    tool = tmp_path / "tool.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tool), str(tmp_path / "tool.c")], check=True)
    code = "from accelrt import nvtx\nnvtx.mark('hello')\nwith nvtx.range('step {}', 3): pass\n"
    heard = run_code(code, NVTX_INJECTION64_PATH=str(tool)).splitlines()
    assert heard == ["mark hello", "push step 3", "pop"]
    assert run_code(code + "print(nvtx.is_listening())") == "False\n"
