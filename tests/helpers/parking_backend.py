"""A backend of collectives in which a thread is stopped before or after a call until it is told to go on."""

import threading

SECONDS = 300


class ParkingBackend:
    """In the place of a communicator's backend: notes the calls that end, and parks one of them.

    Attributes:
        calls: list of str, the functions that returned, in their order.
    """

    def __init__(self, module):
        self.module = module
        self.calls = []
        self.point = None  # (function, "before" or "after")
        self.parked = threading.Event()
        self.going_on = threading.Event()
        self.instead = None  # function without arguments, called in the place of waiting

    def park(self, function, when):
        """Stops the first thread that comes there."""
        self.point = (function, when)

    def call_at(self, function, when, instead):
        """Calls a function there, as a signal's handler would be."""
        self.point, self.instead = (function, when), instead

    def go_on(self):
        self.point = None
        self.going_on.set()

    def pass_by(self, function, when):
        if self.point != (function, when):
            return
        self.point = None
        self.parked.set()
        if self.instead is not None:
            self.instead()
        else:
            assert self.going_on.wait(SECONDS)

    def __getattr__(self, name):
        found = getattr(self.module, name)
        if not callable(found):
            return found

        def call(*arguments):
            self.pass_by(name, "before")
            try:
                return found(*arguments)
            finally:
                self.calls.append(name)
                self.pass_by(name, "after")

        return call


class Worker(threading.Thread):
    """A thread that calls a function, and keeps what it raised."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.function = function
        self.arguments = arguments
        self.error = None
        self.start()

    def run(self):
        try:
            self.function(*self.arguments)
        except BaseException as error:
            self.error = error

    def end(self):
        """What it raised, or None.

        Raises:
            AssertionError: it does not end.
        """
        self.join(SECONDS)
        assert not self.is_alive(), f"{self.function} does not end"
        return self.error
