"""accelrt doctor: say what on this machine stands in the way of a GPU, and what to do about it.

Each check says in a line what it found, and where that is not well, what to do.  Nothing is changed, and
nothing but opening the chosen driver touches a device.  The exit status is 1 where something fails.
"""

import argparse
import json
from dataclasses import asdict

from accelrt.core.printable import printable_lines
from accelrt.tools.cli import checks, options
from accelrt.tools.cli.text import put

SIGNS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_json(parser)


def run(as_json: bool) -> int:
    """The command.  Returns its exit status."""
    findings = checks.all_findings()
    failed = any(each.state == "fail" for each in findings)
    if as_json:
        listed = [asdict(each) for each in findings]
        report = {"schema": options.SCHEMA, "well": not failed, "checks": listed}
        print(json.dumps(report, indent=2))
    else:
        width = max(len(each.name) for each in findings)
        for each in findings:
            put(printable_lines(f"{SIGNS[each.state]}  {each.name:<{width}}  {each.text}"))
            if each.advice:
                put(printable_lines(f"      {'':<{width}}  -> {each.advice}"))
    return int(failed)
