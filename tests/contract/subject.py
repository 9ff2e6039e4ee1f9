"""A driver under test: its rows, a record of which were called, and of what is alive."""

from functools import partial

from accelrt.driver.rows import Rows

# row -> what it makes, named by the handle or the address that it writes
MAKES = {
    "memory_alloc": "allocation",
    "async_alloc": "stream-ordered allocation",
    "host_alloc": "host allocation",
    "address_reserve": "reservation",
    "physical_create": "physical handle",
    "stream_create": "stream",
    "event_create": "event",
    "capture_end": "graph",
    "graph_instantiate": "exec",
    "module_load": "module",
    "ipc_event_open": "event",
    "ipc_memory_open": "opened memory",
}
# row -> what it ends, and the place of its name among the arguments
ENDS = {
    "memory_free": ("allocation", 1),
    "async_free": ("stream-ordered allocation", 2),
    "host_free": ("host allocation", 1),
    "host_unregister": ("registration", 1),
    "address_free": ("reservation", 0),
    "physical_release": ("physical handle", 0),
    "stream_destroy": ("stream", 1),
    "event_destroy": ("event", 1),
    "graph_destroy": ("graph", 0),
    "graph_exec_destroy": ("exec", 0),
    "module_unload": ("module", 1),
    "ipc_memory_close": ("opened memory", 1),
}
STILL_CAPTURING = (401, 903, 908)  # capture_end's answers that leave the capture as it was


class Subject:
    """Every row of a driver as a method, as Rows has them.

    called: the names of the rows that were called.  live: what was made and not ended, (kind, name).
    """

    def __init__(self, driver):
        self.rows = Rows(driver)
        self.driver = driver
        self.called = set()
        self.live = set()

    def __getattr__(self, row):
        return partial(self.call, row)

    def call(self, row, *arguments):
        answer = getattr(self.rows, row)(*arguments)
        self.called.add(row)
        code, *written = answer if isinstance(answer, tuple) else (answer,)
        self.note_capture(row, code, arguments)
        if code == 0:
            self.note(row, arguments, written)
        return answer

    def must(self, row, *arguments):
        """Calls a row that has to succeed; returns what it wrote: nothing, one thing or a list."""
        answer = self.call(row, *arguments)
        code, *written = answer if isinstance(answer, tuple) else (answer,)
        assert code == 0, f"{self.driver}: {row}{arguments} answered {code}"
        return written[0] if len(written) == 1 else written or None

    def note(self, row, arguments, written):
        if row in MAKES:
            self.live.add((MAKES[row], written[0]))
        elif row in ENDS:
            kind, place = ENDS[row]
            self.live.discard((kind, arguments[place]))
        elif row == "host_register":
            self.live.add(("registration", arguments[1]))
        elif row == "memory_map":
            self.live.add(("mapping", arguments[0]))
        elif row == "memory_unmap":
            first, size = arguments
            self.live -= {
                (kind, at) for kind, at in self.live if kind == "mapping" and first <= at < first + size
            }

    def note_capture(self, row, code, arguments):
        if row == "capture_begin" and code == 0:
            self.live.add(("capture", arguments[1]))
        elif (row == "capture_end" and code not in STILL_CAPTURING) or (
            row == "stream_destroy" and code == 0
        ):
            self.live.discard(("capture", arguments[1]))
