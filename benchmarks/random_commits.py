"""Random commits and decommits of a reservation, for long_runs.py."""

import numpy as np
from checked_run import LOOK, Run, check

import accelrt

MIB = 1 << 20
PAGES = 256
MOST_PAGES = 16  # of one commit


def commits(run: Run) -> None:
    """Commits and decommits; the model is the value that each committed page was filled with."""
    with accelrt.reserve(PAGES * 2 * MIB) as cache:
        page = cache.page_bytes
        model: dict[int, int] = {}
        done = 0
        while done < run.count and not run.over():
            first = run.random.randrange(len_of(cache))
            last = min(first + run.random.randint(1, MOST_PAGES), len_of(cache))
            change_pages(run, cache, model, range(first, last))
            done += 1
            if done % LOOK == 0:
                audit_pages(run, cache, model)
        audit_pages(run, cache, model)
        accelrt.synchronize()
        run.said = {"done": done, "committed_pages": len(model), "page_bytes": page}


def len_of(cache: accelrt.memory.Reservation) -> int:
    """The pages of a reservation."""
    return cache.nbytes // cache.page_bytes


def change_pages(run: Run, cache: accelrt.memory.Reservation, model: dict[int, int], pages: range) -> None:
    """Decommits as many of a range's first pages as are committed; or commits and fills those that aren't."""
    page, first = cache.page_bytes, pages.start
    committed = first in model
    last = next((each for each in pages if (each in model) != committed), pages.stop)
    place, size = first * page, (last - first) * page
    if committed:
        cache.decommit(place, size)
        for each in range(first, last):
            del model[each]
        return
    cache.commit(place, size)
    for each in range(first, last):
        model[each] = run.random.randrange(256)
        cache.buffer(each * page, 512).fill(model[each])


def audit_pages(run: Run, cache: accelrt.memory.Reservation, model: dict[int, int]) -> None:
    """Compares what is committed, and some of it, with the model."""
    page = cache.page_bytes
    accelrt.memory.audit()
    found = {place // page for start, size in cache.committed() for place in range(start, start + size, page)}
    check(found == set(model), f"{len(found)} pages are committed, and not the {len(model)} that should be")
    check(cache.committed_bytes == len(model) * page, "the committed bytes are miscounted")
    read = np.zeros(512, np.uint8)
    for each in run.random.sample(sorted(model), min(4, len(model))):
        accelrt.copy(read, cache.buffer(each * page, 512))
        check(bool((read == model[each]).all()), f"page {each} lost its contents")
