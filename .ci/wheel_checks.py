"""A wheel: `pack WHEEL` compresses it anew; `contents WHEEL` checks what it holds and needs of glibc;
`import` checks what importing it costs.

The last runs in an environment into which the wheel was installed.
"""

import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

WHEEL_MB, INSTALLED_MB, MODULES, IMPORT_MS = 3.0, 8.0, 35, 18.0
GLIBC = (2, 28)
DECLARATIONS = {"accelrt/api.pxd", "accelrt/status.pxd"}
# Headers of the C API, and those with which accelrt compiles where it runs.
HEADERS = re.compile(
    r"accelrt/(include/accelrt(_static)?\.(h|hpp)|kernels/cuda_on_host/.*|allocator/external/torch_table\.h"
    r"|interop/(torch_\w+\.(h|cpp)|cuda_stub/\w+\.h))"
)
LEFT_OUT = re.compile(r".*(\.(pyx|pxi|c|md)|/(stubgen|rowgen|headergen)\.py)")
COUNT = """
import accelrt
with open("/proc/self/maps") as maps:
    files = {line.split()[-1] for line in maps if "accelrt" in line and ".so" in line}
print(len(files))
"""


def demand(holds: bool, said: str) -> None:
    print(said)
    if not holds:
        raise SystemExit(f"not so: {said}")


def pack(path: Path) -> None:
    """Compresses a wheel's files by Zopfli: what every unpacker reads, a twentieth less, in half a minute."""
    import zopfli

    with zipfile.ZipFile(path) as archive:
        files = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zopfli.ZipFile(path, "w", zipfile.ZIP_DEFLATED, iterations=5) as archive:
        for entry, data in files:
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)


def contents(path: Path) -> None:
    """Checks a wheel's size, files and platform."""
    with zipfile.ZipFile(path) as archive:
        files = {entry.filename: entry.file_size for entry in archive.infolist()}
    size, installed = path.stat().st_size / 1e6, sum(files.values()) / 1e6
    # Without a GIL counting references takes more code.
    more = 0.05 if re.search(r"-cp\d+t-", path.name) else 0.0
    most, most_installed = WHEEL_MB + more, INSTALLED_MB + more
    demand(size <= most, f"{size:.2f} MB, of at most {most:g}")
    demand(installed <= most_installed, f"{installed:.2f} MB installed, of at most {most_installed:g}")
    pxd = {name for name in files if name.endswith(".pxd")}
    demand(pxd == DECLARATIONS, f"declarations for Cython: {', '.join(sorted(pxd))}")
    sources = [name for name in files if name.endswith((".h", ".hpp", ".cpp", ".c"))]
    stray = [name for name in sources if not HEADERS.fullmatch(name)]
    stray += [name for name in files if LEFT_OUT.fullmatch(name)]
    demand(
        not stray, f"{len(sources)} headers and sources that are compiled where accelrt runs; others: {stray}"
    )
    compiled = [name for name in files if name.endswith(".so") and "/prebuilt/" not in name]
    print(f"{len(compiled)} modules, {sum(files[name] for name in compiled) / 1e6:.2f} MB")
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", path], capture_output=True, text=True, check=True
    ).stdout
    tag = re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_x86_64"', shown)
    demand(bool(tag), "auditwheel finds a manylinux tag" if tag else shown)
    assert tag
    needed = (int(tag[1]), int(tag[2]))
    demand(needed <= GLIBC, f"needs manylinux_{tag[1]}_{tag[2]}, and is marked as manylinux_2_28")


def processor_ms(code: str) -> float:
    """The processor's time of an interpreter that runs code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def import_cost() -> None:
    """Checks what `import accelrt` opens and costs over a bare interpreter."""
    opened = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, cwd="/"
    )
    demand(int(opened.stdout) <= MODULES, f"{opened.stdout.strip()} modules opened, of at most {MODULES}")
    programs = ("import accelrt", "pass")
    # By turns, and for some seconds: a processor that others use too changes its pace.
    samples = [[processor_ms(program) for program in programs] for _ in range(60)]
    cost = min(ours for ours, _ in samples) - min(bare for _, bare in samples)
    said = f"{cost:.1f} ms of processor time at import, of at most {IMPORT_MS:g}"
    demand(cost <= IMPORT_MS, said)


if __name__ == "__main__":
    if sys.argv[1] == "import":
        import_cost()
    else:
        {"contents": contents, "pack": pack}[sys.argv[1]](Path(sys.argv[2]))
