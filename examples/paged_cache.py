"""A stand-in for the cache of keys and values of a language model: sequences grow in place, by pages.

Every sequence has addresses for the longest one that there may be, and memory for what it has so far, so that
its keys and values are one array without padding and without a table of pages.  A sequence that has to wait
goes to page-locked memory, in one batch of copies, and its pages serve the others.
"""

import random

import numpy as np

import accelrt as cuda

HEADS, WIDTH, LONGEST, ROOM = 16, 64, 12_000, 8  # halves of keys and values a token; tokens; sequences
TOKEN = 2 * HEADS * WIDTH * 2  # bytes


class Sequence:
    """Tokens of one sequence, at fixed addresses."""

    def __init__(self, cache, place):
        self.cache = cache
        self.start = place * stride(cache)
        self.values = cache.array((LONGEST, 2, HEADS, WIDTH), "f2", offset=self.start)
        self.length = self.pages = 0

    def grow(self, tokens, value):
        """Appends tokens, which are all of one value here."""
        page = self.cache.page_bytes
        wanted = -(-(self.length + tokens) * TOKEN // page)
        if wanted > self.pages:
            self.cache.commit(self.start + self.pages * page, (wanted - self.pages) * page)
            self.pages = wanted
        self.values[self.length : self.length + tokens] = value
        self.length += tokens

    def spans(self):
        page = self.cache.page_bytes
        return self.cache.ptr + self.start + np.arange(self.pages, dtype=np.uint64) * np.uint64(page)

    def put_away(self):
        """Moves the tokens to page-locked memory, and gives the pages back."""
        page = self.cache.page_bytes
        self.kept = cuda.PinnedBuffer(self.pages * page)
        away = self.kept.ptr + np.arange(self.pages, dtype=np.uint64) * np.uint64(page)
        cuda.copy_many(away, self.spans(), page, memory=[self.kept])
        self.cache.decommit(self.start, self.pages * page)

    def bring_back(self):
        page = self.cache.page_bytes
        self.cache.commit(self.start, self.pages * page)
        origin = self.kept.ptr + np.arange(self.pages, dtype=np.uint64) * np.uint64(page)
        cuda.copy_many(self.spans(), origin, page, memory=[self.kept])

    def end(self):
        self.cache.decommit(self.start, self.pages * self.cache.page_bytes)


def stride(cache):
    """Bytes of addresses from a sequence to the next: whole pages."""
    return -(-LONGEST * TOKEN // cache.page_bytes) * cache.page_bytes


def run():
    chosen = random.Random(0)
    cache = cuda.reserve(2 * ROOM * LONGEST * TOKEN, ahead=8 << 20)
    sequences = [Sequence(cache, place) for place in range(ROOM)]
    for step in range(200):
        sequence = chosen.choice(sequences)
        sequence.grow(chosen.randint(1, 50), sequence.length % 7)
        if step % 40 == 39:
            sequence.put_away()
            others = sum(other.pages for other in sequences if other is not sequence)
            assert cache.committed_bytes == others * cache.page_bytes
            sequence.bring_back()
    tokens = sum(sequence.length for sequence in sequences)
    waste = cache.committed_bytes - tokens * TOKEN
    for sequence in sequences:
        assert sequence.values[0, 0, 0, 0].item() == 0
        sequence.end()
    part = waste / ROOM / cache.page_bytes
    print(f"{tokens} tokens in {ROOM} sequences, of whose last pages {part:.2f} was not full")
    del sequence, sequences
    cache.close()


if __name__ == "__main__":
    if not cuda.is_available():
        cuda.init(driver="host")
    run()
    cuda.synchronize()
    print(f"{cuda.memory_allocated()} bytes are still allocated")
