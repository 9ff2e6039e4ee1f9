"""Files as processes publish them, to be spoiled by tests."""

import json
import os

from accelrt.core import procfs
from accelrt.tools import publish


def record(**replaced):
    """The text of a file of this very process, some of it replaced."""
    facts = {
        "format": publish.FORMAT,
        "pid": os.getpid(),
        "started": procfs.started(os.getpid()),
        "namespace": publish.namespace(),
        "driver": "cuda",
        "time": 0.0,
        "pools": [pool()],
    }
    return json.dumps(facts | replaced)


def pool(**replaced):
    """What such a file says of a device."""
    facts = {"ordinal": 0, "uuid": "0" * 32, "name": "x", "reserved": 2, "live": 1, "peak_reserved": 3}
    return facts | replaced
