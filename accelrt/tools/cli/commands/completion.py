"""accelrt completion: print the script that completes commands and options in bash, zsh or tcsh.

    eval "$(accelrt completion bash)"

It is made by shtab from the parsers that there are.
"""

import argparse

from accelrt.tools.cli.choice import need
from accelrt.tools.cli.text import put

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(shell: str) -> int:
    """The command; raises ImportError where shtab is not installed."""
    from accelrt.tools.cli.main import parser

    put(need("shtab", "shtab", "completion").complete(parser([]), shell))
    return 0
