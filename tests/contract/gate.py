"""Host functions that need no Python: semaphores of the C library, enqueued as they are.

A Gate holds a stream until it is opened.  One at a time: a driver may run the host functions of all
streams one after the other, so what two gates hold at once must not depend on each other.
"""

import ctypes

LIBRARY = ctypes.CDLL(None, use_errno=True)
SEM_WAIT = ctypes.cast(LIBRARY.sem_wait, ctypes.c_void_p).value
SEM_POST = ctypes.cast(LIBRARY.sem_post, ctypes.c_void_p).value
SEM_BYTES = 64


class Semaphore:
    """A semaphore of the C library, at 0; its address is what a host function gets."""

    def __init__(self):
        self.buffer = ctypes.create_string_buffer(SEM_BYTES)
        self.address = ctypes.addressof(self.buffer)
        assert LIBRARY.sem_init(ctypes.c_void_p(self.address), 0, 0) == 0

    def post(self):
        assert LIBRARY.sem_post(ctypes.c_void_p(self.address)) == 0

    def value(self):
        number = ctypes.c_int()
        assert LIBRARY.sem_getvalue(ctypes.c_void_p(self.address), ctypes.byref(number)) == 0
        return number.value


class Gate(Semaphore):
    """Closed until open() is called, as often as it was put in a stream's way."""

    held = 0

    def hold(self, subject, stream, device=0):
        code = subject.stream_host_func(device, stream, SEM_WAIT, self.address)
        self.held += code == 0
        return code

    def open(self):
        while self.held:
            self.held -= 1
            self.post()


class Mark(Semaphore):
    """Counts how often a stream came past it."""

    def put(self, subject, stream, device=0):
        return subject.stream_host_func(device, stream, SEM_POST, self.address)
