"""A resource of addresses that nobody uses, which counts what is taken of it."""

import threading

from accelrt import resources


class Counting(resources.Resource):
    """Addresses that nobody uses, from 2**20 on, each of which comes once; room is the most bytes at once."""

    def __init__(self, room=1 << 40):
        super().__init__()
        self.next = 1 << 20
        self.room = room
        self.live = {}
        self.lock = threading.RLock()

    def take(self, nbytes, stream):
        with self.lock:
            if sum(self.live.values()) + nbytes > self.room:
                raise MemoryError(f"{self.room} bytes are not enough")
            address = self.next
            self.next += nbytes
            self.live[address] = nbytes
        return address

    def give_back(self, address, nbytes, stream):
        with self.lock:
            assert self.live.pop(address) == nbytes
