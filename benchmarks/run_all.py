"""Runs every benchmark, prints the tables, and writes them to RESULTS.md and RESULTS.json.

    python benchmarks/run_all.py [--quick] [--out FOLDER]

Needs a GPU, or ACCELRT_DRIVER=host, where accelrt is alone.  A library that is missing leaves its column
empty; a benchmark that fails is recorded, and the others run.  The exit status is 1 if a benchmark or a cell
of accelrt's failed.  The files go beside this one; those of a quick run, or of the host device, go nowhere
unless --out says where, for they are no results.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import peers
import report

HERE = Path(__file__).resolve().parent
BENCHMARKS = {
    "bench_alloc.py": "Allocation",
    "bench_history.py": "The recorder",
    "bench_stream.py": "Streams, events, devices",
    "bench_graph.py": "Graphs",
    "bench_copy.py": "Copies and fills",
    "bench_kv.py": "The stand-in for a KV cache",
    "bench_launch.py": "Launches and exports",
    "bench_compile.py": "Compilation at run time",
    "bench_import.py": "Import",
    "bench_random.py": "Random allocation",
    "bench_readings.py": "Identity and readings",
    "bench_scaling.py": "Costs beside much else",
    "replay.py": "Replay of recorded traces",
    "stitching.py": "Settings that trade memory against time",
    "torch_training.py": "Training with torch",
    "torch_handover.py": "CUDA tensors between torch's processes",
}
TIMEOUT = 480  # seconds for one benchmark; they take much less


def gpus() -> str:
    """The GPUs and the driver, as nvidia-smi names them, or why it does not."""
    program, driver = shutil.which("nvidia-smi"), Path("/proc/driver/nvidia/version")
    if program is None:
        return driver.read_text().splitlines()[0] if driver.is_file() else "no nvidia-smi, no NVIDIA driver"
    query = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return "; ".join(done.stdout.split("\n")).strip("; ") or f"unknown: {done.stderr.strip()}"


def processor() -> str:
    """The CPU's name and how many of its cores this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def hardware() -> dict[str, str]:
    """Where and when."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "accelrt runs on": os.environ.get("ACCELRT_DRIVER", "auto"),
        "GPU, driver, memory": gpus(),
        "CPU": processor(),
        "system": platform.platform(),
        "Python": platform.python_version(),
    }


def run(script: str, quick: bool) -> dict:
    """One benchmark's JSON, or a dict with "failed" and the text of what happened."""
    command = [sys.executable, str(HERE / script), "--json", *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"failed": f"stopped after {TIMEOUT} s"}
    if done.returncode:
        return {"failed": f"ended with {done.returncode}: {done.stderr[-2000:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def versions(suites: dict[str, dict]) -> dict[str, str]:
    """The libraries' versions, by column."""
    found: dict[str, str] = {}
    for suite in suites.values():
        found.update(suite.get("versions", {}))
    return found


def document(results: dict) -> str:
    """RESULTS.md."""
    about = {**results["hardware"], **results["versions"]}
    lines = ["# Benchmarks", "", "Written by `python benchmarks/run_all.py`.", "", "| | |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in about.items()]
    lines += ["", report.READING]
    if results["quick"]:
        lines += ["", "**A quick run: it shows that everything works, its figures are worth nothing.**"]
    for script, suite in results["benchmarks"].items():
        lines += ["", f"## {BENCHMARKS[script]}", ""]
        if "failed" in suite:
            lines.append(f"Failed: {report.one_line(suite['failed'])}")
        else:
            lines += [report.note_of(HERE / script), "", report.table(suite)]
    return "\n".join(lines) + "\n"


def is_broken(suite: dict) -> bool:
    """Whether a benchmark, or accelrt in it, failed."""
    ours = [error for error in suite.get("errors", []) if "accelrt" in error["column"]]
    return bool("failed" in suite or ours or "accelrt" in suite["absent"])


def main() -> int:
    """Runs, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few batches only: shows that all runs")
    parser.add_argument("--out", type=Path, help="folder for RESULTS.md and RESULTS.json")
    options = parser.parse_args()
    results = {"hardware": hardware(), "quick": options.quick, "versions": {}, "benchmarks": {}}
    for script in BENCHMARKS:
        print(f"{script} ...", file=sys.stderr, flush=True)
        results["benchmarks"][script] = run(script, options.quick)
    results["versions"] = versions(results["benchmarks"])
    text = document(results)
    folder = options.out or (None if options.quick or peers.on_host() else HERE)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "RESULTS.json").write_text(json.dumps(results, indent=1) + "\n")
        (folder / "RESULTS.md").write_text(text)
    print(text)
    return int(any(is_broken(suite) for suite in results["benchmarks"].values()))


if __name__ == "__main__":
    sys.exit(main())
