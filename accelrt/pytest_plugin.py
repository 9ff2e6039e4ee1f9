"""The plug-in for pytest: fixtures for tests of programs and extensions that use it.

Installing accelrt installs it; accelrt.testing is imported where a test asks for a fixture.
docs/guide/testing.md has examples.  Before the first of them runs, the session's device is initialised so
that calls of the driver can fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

failed: pytest.StashKey[bool] = pytest.StashKey()
NEED_DEVICE = {
    *("accelrt_device", "accelrt_leak_check", "accelrt_audit", "accelrt_faults", "accelrt_interleave")
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the driver that fixtures use, for a command line or for addopts."""
    text = (
        "the device of accelrt's fixtures; default: ACCELRT_DRIVER, else a GPU where there is one, else host"
    )
    parser.getgroup("accelrt").addoption("--accelrt-driver", choices=("host", "cuda"), help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Initialises the device before the first test uses it in another way."""
    items = [] if session.config.option.collectonly else session.items
    if any(NEED_DEVICE.intersection(getattr(item, "fixturenames", ())) for item in items):
        with contextlib.suppress(Exception):  # the fixture says it, in the report of its test
            use_device(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[failed] = item.stash.get(failed, False) or report.failed  # type: ignore[attr-defined]
    return report


def use_device(config: pytest.Config) -> str:
    from accelrt import testing

    return testing.use_device(config.getoption("--accelrt-driver"))


@pytest.fixture(scope="session")
def accelrt_device(pytestconfig: pytest.Config) -> str:
    """Initialises the driver that the session runs on, "host" or "cuda": the one that --accelrt-driver or
    ACCELRT_DRIVER names; without both a GPU where there is one, else the host device."""
    return use_device(pytestconfig)


@pytest.fixture
def accelrt_leak_check(accelrt_device: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Fails a test that leaves more memory, handles or pools alive than it found
    (accelrt.testing.check_leaks).

    A test that has failed is not checked: what pytest keeps of the failure holds what the test had made.
    """
    __tracebackhide__ = True
    from accelrt import testing

    check = testing.LeakCheck().begin()
    yield check
    if request.node.stash.get(failed, False) or check.before is None:
        check.cancel()
    else:
        check.finish()


@pytest.fixture
def accelrt_audit(accelrt_device: str) -> Iterator[None]:
    """Walks every identity of the allocator after the test (accelrt.testing.audit)."""
    from accelrt import testing

    yield
    testing.settle()
    testing.audit()


@pytest.fixture
def accelrt_faults(accelrt_device: str) -> Any:
    """Hands out accelrt.testing, for failing(), failing_calls() and calls_of(), where calls of the driver can
    fail."""
    from accelrt import testing
    from accelrt.testing.device import wrapped_table

    wrapped_table()  # raises where accelrt was initialised before
    return testing


@pytest.fixture
def accelrt_interleave(accelrt_device: str) -> Callable[..., int]:
    """Hands out accelrt.testing.interleave(): two operations at once, the first stopped at each of its calls
    of the driver."""
    from accelrt import testing
    from accelrt.testing.device import wrapped_table

    wrapped_table()
    return testing.interleave
