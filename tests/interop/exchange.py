"""Arrays from library to library, by DLPack and by the CUDA Array Interface: a table of every ordered pair.

    python tests/interop/exchange.py [--json FILE]

For each pair: the consumer sees the producer's bytes; the memory lives as long as its last holder, and goes
back when another thread drops that one; and the consumer, on a stream of its own, sees what the producer's
stream has yet to write.  On a GPU accelrt is installed under the libraries, so that its figures say whose
memory is back.  Where ACCELRT_DRIVER=host is set, the libraries are those that exchange memory of the CPU.
"""

import argparse
import gc
import importlib
import json
import sys
import threading

import numpy as np
from exchange_libraries import BYTES, DLPACK, INTERFACE, KINDS, ON_HOST

import accelrt

LATE = 20_000_000  # cycles that a stream sleeps before it writes: some 10 ms
WORKS = "works"
# What a library does not offer although it has the protocol, by (producer, consumer, protocol); None is any.
REFUSALS = (
    ("cuda.core", "numpy", DLPACK, "cuda.core: its Buffers are not copied to the host"),
    ("numpy", "CuPy", DLPACK, "CuPy: takes no memory of the CPU"),
    ("torch", "cuda.core", INTERFACE, "torch: its interface is of version 2, and cuda.core takes 3"),
)
UNORDERED = (
    ("torch", None, INTERFACE, "torch: its interface names no stream"),
    (None, "torch", INTERFACE, "torch: looks at no stream of the interface"),
    ("cuda.core", None, None, "cuda.core: __dlpack__ of a Buffer looks at no stream"),
    ("numpy", None, None, "numpy: the CPU has no streams"),
)


class Only:
    """An array by one of its interfaces alone."""

    def __init__(self, array):
        self.array = array


class OnlyDLPack(Only):
    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnlyInterface(Only):
    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__


def first_match(rules, producer, consumer, protocol):
    for first, second, third, why in rules:
        wanted = zip((first, second, third), (producer.name, consumer.name, protocol), strict=True)
        if all(rule in (None, name) for rule, name in wanted):
            return why
    return ""


def not_offered(producer, consumer, protocol):
    """Why a pair has nothing to exchange by; empty where it has."""
    for library, has, role in ((producer, producer.makes, "exports"), (consumer, consumer.takes, "imports")):
        if protocol not in has:
            return f"{library.name}: {role} none"
    return first_match(REFUSALS, producer, consumer, protocol)


def hand_over(producer, consumer, protocol, array):
    """As the producer would where its stream is current, and so for the consumer."""
    wrapped = (OnlyDLPack if protocol == DLPACK else OnlyInterface)(array)
    with producer.current(), consumer.current():
        return consumer.take(wrapped, protocol)


def settle():
    """The bytes of accelrt's that are in use once all work is done and what is unreachable is gone."""
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()  # what waited for work that is done goes back
    return accelrt.memory_allocated(0)


def drop_in_thread(holder):
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()


def try_contents(producer, consumer, protocol):
    """Contents and lifetimes."""
    values = np.random.default_rng(len(producer.name) * 7 + len(consumer.name)).integers(
        0, 255, BYTES, np.uint8
    )
    before = settle()
    with producer.current():
        array = producer.make(values)
    used = accelrt.memory_allocated(0)
    taken = [hand_over(producer, consumer, protocol, array)]
    del array
    gc.collect()
    copied = consumer.name == "numpy" and not ON_HOST
    if not copied and accelrt.memory_allocated(0) < used:
        return "the memory was freed under its consumer"
    with consumer.current():
        found = consumer.read(taken[0])
        if not np.array_equal(found, values):
            return f"{np.count_nonzero(found != values)} bytes are wrong"
        del found
        drop_in_thread(taken)
    left = settle() - before
    return f"{left} bytes are left" if left else WORKS


def try_order(producer, consumer, protocol):
    """The producer's stream sleeps, then writes; the consumer reads at once."""
    why = first_match(UNORDERED, producer, consumer, protocol)
    if why or ON_HOST:
        return why or "the CPU has no streams"
    with producer.current():
        array = producer.make(np.zeros(BYTES, np.uint8))
        producer.fill(array, 1)  # what is loaded at the first use would wait for the sleep
    accelrt.synchronize()
    stream = accelrt.Stream.from_any(producer.handle)
    with producer.current():
        accelrt.sleep(LATE, stream)
        producer.fill(array, 7)
        late = not stream.query()
    taken = hand_over(producer, consumer, protocol, array)
    with consumer.current():
        found = consumer.read(taken)
    accelrt.synchronize()
    if not late:
        return "the work was done too early to tell"
    wrong = np.count_nonzero(found != 7)
    return f"{wrong} bytes were read too early" if wrong else WORKS


def tried(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run_pair(producer, consumer, protocol):
    row = {
        "producer": producer.name,
        "consumer": consumer.name,
        "protocol": protocol,
        "contents": "",
        "order": "",
    }
    row["not_offered"] = not_offered(producer, consumer, protocol)
    if not row["not_offered"]:
        row["contents"] = tried(try_contents, producer, consumer, protocol)
        row["order"] = tried(try_order, producer, consumer, protocol)
    return row


def install():
    """Puts accelrt under every library that is there; the names of those."""
    found = []
    for name in ("torch", "cupy", "numba"):
        try:
            importlib.import_module(f"accelrt.interop.{name}").install()
        except ModuleNotFoundError:
            continue
        found.append(name)
    return found


def find_libraries():
    found, missing = [], []
    for kind in KINDS:
        try:
            found.append(kind())
        except ModuleNotFoundError as error:
            missing.append(f"{kind.name}: {error}")
    return found, missing


def run():
    """What main() prints, as a dict."""
    installed = [] if ON_HOST else install()
    accelrt.init()
    libraries, missing = find_libraries()
    rows = [
        run_pair(producer, consumer, protocol)
        for protocol in (DLPACK, INTERFACE)
        for producer in libraries
        for consumer in libraries
        if producer is not consumer and not (ON_HOST and protocol == INTERFACE)
    ]
    bytes_left = settle()
    return {"installed": installed, "missing": missing, "rows": rows, "bytes_left": bytes_left}


def wrong_rows(rows):
    """Rows of pairs that offer the exchange and fail at it."""
    ordered = [row for row in rows if row["contents"]]
    known = {why for *_, why in UNORDERED} | {WORKS, "the CPU has no streams"}
    return [row for row in ordered if row["contents"] != WORKS or row["order"] not in known]


def print_table(report):
    print(f"accelrt is installed under: {', '.join(report['installed']) or 'none'}")
    for line in report["missing"]:
        print("missing:", line)
    for row in report["rows"]:
        what = f"{row['producer']:>9} -> {row['consumer']:<9} {row['protocol']:<20} "
        if row["not_offered"]:
            print(f"{what} not offered by {row['not_offered']}")
        elif row["order"] in (WORKS, "the CPU has no streams"):
            print(f"{what} {row['contents']}; streams: {row['order']}")
        else:
            print(f"{what} {row['contents']}; streams: not offered by {row['order']}")
    offered = [row for row in report["rows"] if row["contents"]]
    bad = wrong_rows(report["rows"])
    print(
        f"{len(offered)} exchanges offered, {len(offered) - len(bad)} right; "
        f"{report['bytes_left']} bytes left"
    )
    for row in bad:
        print("WRONG", row)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="a file for the report")
    options = parser.parse_args()
    report = run()
    print_table(report)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file)
    return 1 if wrong_rows(report["rows"]) or report["bytes_left"] else 0


if __name__ == "__main__":
    sys.exit(main())
