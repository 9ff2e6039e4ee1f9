"""Asks a driver what it answers in situations that its documentation leaves open.

    python tests/contract/ask_situations.py cuda > cuda.txt
    python tests/contract/ask_situations.py host > host.txt
    diff cuda.txt host.txt

One line each, `situation: answers`; codes are those of CUresult.  With words after the driver, only
the situations that contain one of them.
"""

import importlib
import sys
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = ("capture", "captured", "beside", "events", "memory", "virtual", "graphs", "waits", "rows")
AT_ONCE = 4


def main(driver="cuda", *words):
    sys.path.insert(0, str(ROOT))
    asking = importlib.import_module("asking")
    for subject in SUBJECTS:
        importlib.import_module(f"asks_{subject}")
    wanted = [each for each in asking.SITUATIONS if not words or any(word in each.name for word in words)]
    under_way = deque()
    for each in sorted(wanted, key=lambda situation: situation.alone):
        while len(under_way) > (0 if each.alone else AT_ONCE - 1):
            print(asking.finish(under_way.popleft()), flush=True)
        under_way.append(asking.begin(each, driver))
    for started in under_way:
        print(asking.finish(started), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
