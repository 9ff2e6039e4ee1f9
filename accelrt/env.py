"""Every ACCELRT_ variable that accelrt reads: its name, its default, what it means, and how it is read.

Nothing else of accelrt reads one of these from the environment.  A value that is not allowed raises an error
that names the variable, the value and what is allowed; an empty one counts as not set.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PREFIX = "ACCELRT_"
DRIVERS = ("cuda", "host")  # each a module driver/NAME/driver.pyx
MOST_HOST_DEVICES = 64  # MAX_HOST_DEVICES of driver/host/machine.pxd
MOST_HOST_THREADS = 64  # MOST_CREW of driver/host/machine.pxd
MOST_HOST_NODES = 64
LEAST_BYTES = 1 << 21
UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}
ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")


_warned = False


class Variable:
    """One variable.

    Attributes:
        name: str.
        default: str, what holds where it is not set, as it would be written.
        read: from (name, text) to the value; ValueError where the text is not allowed.
        meaning: str, a line for a table.
    """

    __slots__ = ("default", "meaning", "name", "read")

    def __init__(self, name: str, default: str, read: "Callable[[str, str], Any]", meaning: str) -> None:
        self.name: str = name
        self.default: str = default
        self.read: Callable[[str, str], Any] = read
        self.meaning: str = meaning


def text(name: str) -> str:
    """Returns what a variable of the table is set to; empty where it is not set."""
    return os.environ.get(VARIABLES[name].name) or ""


def value(name: str) -> "Any":
    """Returns what a variable of the table says, or its default.

    Raises:
        ValueError: the text is not allowed; the error names the variable, the text and what is allowed.
    """
    return VARIABLES[name].read(name, text(name) or VARIABLES[name].default)


def unknown() -> list[tuple[str, str]]:
    """The ACCELRT_ variables of the environment that nothing reads, each with the known name that is nearest
    to it, or "".  ACCELRT_TEST_ is for those who test.
    """
    names = VARIABLES.keys() | BUILD_VARIABLES.keys()
    others = [name for name in os.environ if name.startswith(PREFIX) and name not in names]
    others = [name for name in others if not name.startswith("ACCELRT_TEST_")]
    if not others:
        return []
    from accelrt.core.instead import meant

    bare = {name.removeprefix(PREFIX): name for name in names}
    return [(name, bare.get(meant(name.removeprefix(PREFIX), bare), "")) for name in sorted(others)]


def warn_of_unknown() -> None:
    """Warns of those, once a process."""
    global _warned
    if _warned:
        return
    _warned = True
    import warnings  # late: it takes long

    for name, nearest in unknown():
        advice = f"; {nearest} is" if nearest else "; `accelrt info` lists those that are"
        warnings.warn(
            f"{name} is no variable of accelrt's and has no effect{advice}", RuntimeWarning, stacklevel=1
        )


def refusal(name: str, value: str, allowed: str) -> ValueError:
    return ValueError(f"{name}={value!r} is not known; it may be {allowed}")


def one_of(*words: str) -> "Callable[[str, str], str]":
    def read(name: str, value: str) -> str:
        if value not in words:
            raise refusal(name, value, ", ".join(words))
        return value

    return read


def read_flag(name: str, value: str) -> bool:
    word = value.strip().lower()
    if word not in ON + OFF:
        raise refusal(name, value, "1, true, yes or on, and 0, false, no or off")
    return word in ON


def read_sanitize(name: str, value: str) -> str:
    word = value.strip().lower()
    if word in OFF:
        return ""
    if word not in (*ON, "raise", "warn"):
        raise refusal(name, value, "0, 1, raise or warn")
    return "warn" if word == "warn" else "raise"


def read_level(name: str, value: str) -> int:
    if value.strip() not in ("0", "1", "2"):
        raise refusal(name, value, "0, 1 or 2")
    return int(value)


def is_number(digits: str) -> bool:
    """Tells whether it is decimal digits; int() alone takes signs, underscores and other scripts' digits
    too."""
    return digits.isascii() and digits.isdigit() and len(digits) <= 20


def number_to(highest: int) -> "Callable[[str, str], int]":
    def read(name: str, value: str) -> int:
        digits = value.strip()
        if not (is_number(digits) and int(digits) <= highest):
            raise ValueError(f"{name}={value!r} is no number from 0 to {highest}")
        return int(digits)

    return read


def read_size(name: str, value: str) -> int:
    """Bytes of a size such as "512MiB", "64G" or "1GB".

    KiB, MiB, GiB, TiB and the letters alone are powers of 1024; KB, MB, GB and TB are powers of 1000.

    Arguments:
        name: of the variable or option, for the error.
    Raises:
        ValueError: it is no size, or less than 2 MiB.
    """
    bare = value.strip()
    digits = bare.rstrip("BKMGTibkmgt ")
    unit = UNITS.get(bare[len(digits) :].strip().lower(), 0)
    size = int(digits) * unit if is_number(digits) else 0
    if not LEAST_BYTES <= size < 1 << 50:
        raise ValueError(
            f"{name}={value!r} is no size; write bytes or a unit, such as 512MiB, 64GiB (2**30 bytes each) "
            "or 64GB (10**9 bytes each), of 2 MiB or more"
        )
    return size


def read_tolerances(name: str, value: str) -> tuple[float, float] | None:
    """(atol, rtol) of "1e-5_1e-3", both 1e-5 for 1 and so on; None for 0."""
    word = value.strip().lower()
    if word in OFF:
        return None
    parts = ["1e-5", "1e-5"] if word in ON else word.split("_")
    try:
        tolerances = [float(part) for part in parts]
    except ValueError:
        tolerances = []
    if len(tolerances) != 2 or not all(0 <= part < float("inf") for part in tolerances):
        raise refusal(name, value, "0, 1, or two numbers from 0 on, as in 1e-5_1e-3")
    return tolerances[0], tolerances[1]


def read_mebibytes(name: str, value: str) -> int:
    """MiB, or -1."""
    digits = value.strip()
    if digits != "-1" and not (is_number(digits) and int(digits) < 1 << 20):
        raise ValueError(f"{name}={value!r} is no number of MiB from 0 to {(1 << 20) - 1}, nor -1")
    return int(digits)


def read_seconds(name: str, value: str) -> float:
    """Seconds, greater than 0; infinite for "inf"."""
    word = value.strip().lower()
    if word == "inf":
        return float("inf")
    whole, point, part = word.partition(".")
    digits = whole + part
    if not is_number(digits) or not whole or (point and not part) or float(word) == 0:
        raise refusal(name, value, "a number of seconds greater than 0, such as 600 or 0.5, or inf")
    return float(word)


def cache_home() -> str:
    """The user's folder for caches; by the XDG Base Directory Specification a relative one is ignored."""
    folder = os.environ.get("XDG_CACHE_HOME") or ""
    return folder if os.path.isabs(folder) else os.path.expanduser("~/.cache")


def read_folder(name: str, value: str) -> str:
    """The absolute path of a folder; "~" and "$XDG_CACHE_HOME" at its start are replaced."""
    if value.startswith("$XDG_CACHE_HOME"):
        value = cache_home() + value.removeprefix("$XDG_CACHE_HOME")
    return os.path.abspath(os.path.expanduser(value))


def as_it_is(name: str, value: str) -> str:
    return value


# Name: default, how it is read, meaning.
ROWS: "dict[str, tuple[str, Callable[[str, str], Any], str]]" = {
    "ACCELRT_DRIVER": ("auto", one_of("auto", *DRIVERS), "the driver: auto, which is cuda; cuda; or host"),
    "ACCELRT_HOST_DEVICES": (
        "2",
        number_to(MOST_HOST_DEVICES),
        "how many devices the host driver has, 0 to 64",
    ),
    "ACCELRT_HOST_MEMORY": ("1GiB", read_size, "memory of each host device, such as 512MiB or 64GiB"),
    "ACCELRT_HOST_DELAY_US": ("0", number_to(10**9), "microseconds before each operation of the host driver"),
    "ACCELRT_HOST_END_DELAY_US": (
        "0",
        number_to(10**9),
        "microseconds within each end of a capture of the host driver",
    ),
    "ACCELRT_HOST_THREADS": (
        "0",
        number_to(MOST_HOST_THREADS),
        "threads that run a kernel of the host driver, 1 to 64; 0 is one for each processor",
    ),
    "ACCELRT_HOST_NODES": (
        "1",
        number_to(MOST_HOST_NODES),
        "NUMA nodes that the host driver's devices are nearest to by turns, 1 to 64",
    ),
    "ACCELRT_NCCL_TIMEOUT": (
        "600",
        read_seconds,
        "seconds, or inf, that other ranks may take to come, and to call an operation that is waited for",
    ),
    "ACCELRT_NCCL_EXIT_TIMEOUT": (
        "5",
        read_seconds,
        "seconds, or inf, that the process's end waits for collectives under way",
    ),
    "ACCELRT_RENDEZVOUS_KEY": (
        "",
        as_it_is,
        "a secret of the job, the same for all ranks, without which nobody takes a rank's place",
    ),
    "ACCELRT_ALLOC_CONF": ("", as_it_is, "the allocator's settings, key:value,key:value"),
    "ACCELRT_SANITIZE": ("0", read_sanitize, "races between streams: 1 or raise, warn, or 0 for off"),
    "ACCELRT_LEAKS": ("0", read_flag, "1 writes what is still live when the process ends to stderr"),
    "ACCELRT_PUBLISH": ("0", read_flag, "1 shows this process's pools to accelrt top and export"),
    "ACCELRT_RECORD": (
        "",
        as_it_is,
        "a file into which this process records what its allocator does (accelrt record)",
    ),
    "ACCELRT_RECORD_STACKS": (
        "none",
        one_of("none", "python", "all"),
        "the stacks in that file: none, python, or all for those of C too",
    ),
    "ACCELRT_DEBUG": (
        "0",
        read_level,
        "audits each operation of the allocator: 1 its counters, 2 everything",
    ),
    "ACCELRT_KERNEL_CACHE": (
        "$XDG_CACHE_HOME/accelrt/kernels",
        read_folder,
        "the folder of compiled kernels",
    ),
    "ACCELRT_KERNEL_CACHE_MB": (
        "512",
        number_to(1 << 20),
        "how large that folder may grow, in MiB; 0 keeps nothing on disk",
    ),
    "ACCELRT_TORCH_OBJECT": (
        "auto",
        one_of("auto", "prebuilt", "compiled", "plugged"),
        "how accelrt becomes torch's allocator: auto, a prebuilt object, a compiled one, or plugged in",
    ),
    "ACCELRT_SHARING_TIMEOUT": (
        "30",
        read_seconds,
        "seconds that a process waits for another one: whose memory it opens, that opens its own, or "
        "that keeps a file of tuning results locked",
    ),
    "ACCELRT_TUNABLE_ENABLED": ("0", read_flag, "1 has operations run the fastest candidate that is known"),
    "ACCELRT_TUNABLE_TUNING": ("1", read_flag, "1 has operations time their candidates where none is known"),
    "ACCELRT_TUNABLE_RECORD_UNTUNED": (
        "0",
        read_flag,
        "1 has them write what is not known to a file instead",
    ),
    "ACCELRT_TUNABLE_FILENAME": (
        "accelrt_tunable.csv",
        as_it_is,
        "the file of results; the device's ordinal stands for %d, or before the suffix",
    ),
    "ACCELRT_TUNABLE_UNTUNED_FILENAME": (
        "accelrt_untuned.csv",
        as_it_is,
        "the file of what is not known, named likewise",
    ),
    "ACCELRT_TUNABLE_NUMERICAL_CHECK": (
        "0",
        read_tolerances,
        "whether candidates have to give the default's results: 0, 1, or atol_rtol such as 1e-5_1e-3",
    ),
    "ACCELRT_TUNABLE_MAX_TUNING_DURATION_MS": (
        "30",
        number_to(10**9),
        "the most milliseconds for which a candidate is timed; 0 is without limit",
    ),
    "ACCELRT_TUNABLE_MAX_TUNING_ITERATIONS": (
        "100",
        number_to(10**9),
        "how often a candidate is timed at most; 0 leaves it to the duration",
    ),
    "ACCELRT_TUNABLE_MAX_WARMUP_DURATION_MS": (
        "0",
        number_to(10**9),
        "the most milliseconds for which it runs before",
    ),
    "ACCELRT_TUNABLE_MAX_WARMUP_ITERATIONS": ("0", number_to(10**9), "how often it runs before, at most"),
    "ACCELRT_TUNABLE_CACHE_FLUSH": (
        "0",
        read_flag,
        "1 overwrites the L2 cache before each call that is timed",
    ),
    "ACCELRT_TUNABLE_ROTATING_BUFFER_SIZE": (
        "-1",
        read_mebibytes,
        "MiB of the copies that a candidate gets in turn; -1 is the L2 cache's size",
    ),
    "ACCELRT_TUNABLE_VERBOSE": (
        "0",
        number_to(3),
        "1 tells standard error what was chosen, 2 each candidate, 3 all",
    ),
}
VARIABLES = {name: Variable(name, *row) for name, row in ROWS.items()}

SECRETS = ("ACCELRT_RENDEZVOUS_KEY",)  # whose values nothing prints

# setup.py reads these when the package is built; they say nothing to a program that runs.
BUILD_VARIABLES = {
    "ACCELRT_BUILD": "release, debug, or another kind of build that setup.py knows",
    "ACCELRT_SANITIZE_BUILD": "the compiler's sanitizers to build with",
}
