"""accelrt demo: run a real trace and a captured pipeline, and check both; PASS or FAIL."""

import argparse
import gc
from importlib.resources import as_file, files
from pathlib import Path

import accelrt
from accelrt.core.printable import size_text
from accelrt.runtime.init import chosen_driver
from accelrt.tools.cli import options
from accelrt.tools.cli.choice import open_driver
from accelrt.tools.cli.commands.replay import describe, host_capacity, replay, timed
from accelrt.tools.cli.pipeline import PipelineFigures, pipeline_part
from accelrt.tools.cli.text import pairs, put
from accelrt.tools.traces.npz_archive import load
from accelrt.tools.traces.trace import Trace

NAME = "gpt2.npz"
HEADROOM = 2  # times the trace's peak, which the device has to have free


def load_trace() -> Trace:
    """The trace of a GPT-2 training run: in the package where that is built, else among the benchmarks.

    Raises:
        FileNotFoundError: it is in neither place.
    """
    packaged = files("accelrt.tools.cli") / NAME
    if packaged.is_file():
        with as_file(packaged) as path:
            return load(path)
    return load(Path(accelrt.__file__).parents[1] / "benchmarks" / "traces" / NAME)


def fitting(trace: Trace) -> int:
    """The power of two by which a trace's sizes are divided so that it fits the device."""
    free, _ = accelrt.mem_get_info()
    divisor = 1
    while HEADROOM * trace.peak_live > free * divisor:
        divisor *= 2
    return divisor


def release_everything() -> None:
    """Gives the cache back to the device, and makes sure that nothing was live.

    Raises:
        RuntimeError: something still is.
        AssertionError: an identity of the allocator is violated.
    """
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    live, reserved = accelrt.memory_allocated(), accelrt.memory_reserved()
    if live or reserved:
        raise RuntimeError(f"{live} bytes are live and {reserved} reserved at the end")
    accelrt.memory.audit()


def describe_pipeline(figures: PipelineFigures) -> str:
    """The second part as lines of text."""
    return pairs(
        [
            ("bytes in and out", f"{figures.nbytes:,} ({size_text(figures.nbytes)})"),
            ("graph nodes", f"{figures.nodes}"),
            ("replays", f"{figures.replays}"),
            ("us per replay", timed(f"{figures.us_per_replay:,.1f}", chosen_driver())),
            ("wrong results", f"{figures.wrong} of {figures.replays + 1}"),
            ("host function ran", f"{figures.calls} times"),
        ]
    )


def show(trace: Trace) -> bool:
    """Both parts and the end, with what they say; whether all went well."""
    divisor = fitting(trace)
    scaled = f", sizes divided by {divisor} to fit the device" if divisor > 1 else ""
    put(f"trace of a GPT-2 training run{scaled}", flush=True)
    replayed = replay(trace.shrunk(divisor) if divisor > 1 else trace, wanted=True)
    put(describe(replayed))
    put("pipeline of copies on two streams, once as it is, then as a graph", flush=True)
    piped = pipeline_part()
    put(describe_pipeline(piped))
    release_everything()
    put("memory allocated at the end: 0 bytes; the allocator's audit found nothing")
    return replayed.ooms == 0 and piped.passed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_driver(parser)


def run(driver: str | None = None) -> int:
    """The command.  Returns its exit status: 0 and PASS, or 1 and FAIL."""
    try:
        trace = load_trace()
        put(open_driver(driver, needed=host_capacity(trace)), flush=True)
        passed = show(trace)
    except Exception as error:  # whatever it is, the demo says that it failed
        put(f"{type(error).__name__}: {error}")
        passed = False
    put("PASS" if passed else "FAIL")
    return 0 if passed else 1
