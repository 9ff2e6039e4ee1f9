"""The blocks of a kernel of the host device, shared by threads: each runs once, and all before it ends."""

import numpy as np
import pytest
from child import in_child

pytestmark = [pytest.mark.own_process, pytest.mark.host]
SOURCE = """
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
typedef struct {
    uint32_t grid[3], block[3], index[3];
    uint32_t shared_bytes;
    void *shared;
    int *failed;
} accelrt_block;

static uint32_t number_of(const accelrt_block *where) {
    return where->index[0] + where->grid[0] * (where->index[1] + where->grid[1] * where->index[2]);
}

/* Adds 1 for each block, says on which thread it ran, and checks its shared memory; slow takes 200 us. */
const size_t visit_parameters[] = {8, 8, 4, 0};
void visit(const accelrt_block *where, void **arguments) {
    uint32_t *counts = *(uint32_t **)arguments[0], *threads = *(uint32_t **)arguments[1];
    uint32_t slow = *(uint32_t *)arguments[2], number = number_of(where), *shared = where->shared;
    struct timespec rest = {0, 200000};
    for (uint32_t i = 0; i < where->shared_bytes / 4; i++)
        shared[i] = number + i;
    if (slow)
        nanosleep(&rest, NULL);
    for (uint32_t i = 0; i < where->shared_bytes / 4; i++)
        if (shared[i] != number + i)
            return;
    counts[number] += 1;
    threads[number] = syscall(SYS_gettid);
}

const size_t fail_parameters[] = {8, 4, 0};
void fail(const accelrt_block *where, void **arguments) {
    struct timespec rest = {0, 200000};
    nanosleep(&rest, NULL);
    __atomic_fetch_add(*(uint32_t **)arguments[0], 1, __ATOMIC_SEQ_CST);
    *where->failed = number_of(where) >= *(uint32_t *)arguments[1];
}

const size_t sum_parameters[] = {8, 8, 4, 0};
void sum(const accelrt_block *where, void **arguments) {
    uint32_t *counts = *(uint32_t **)arguments[0], *total = *(uint32_t **)arguments[1];
    for (uint32_t i = 0; i < *(uint32_t *)arguments[2]; i++)
        *total += counts[i];
}
"""


def opened():
    from compiled import compile_image

    import accelrt

    return accelrt, accelrt.Module(compile_image(SOURCE))


def visits():
    """Kernels on several streams at once, each followed by one that reads what it wrote."""
    accelrt, module = opened()
    visit, total = module.function("visit"), module.function("sum")
    grids = [(300, 1, 1), (7, 5, 9), (1, 300, 2), (1, 1, 1)]
    works = []
    for grid in grids:
        stream, size = accelrt.Stream(), int(np.prod(grid))
        counts, threads, sums = (accelrt.zeros(each, "uint32", stream=stream) for each in (size, size, 1))
        visit[grid, 1, stream, 256](counts, threads, np.uint32(1))
        visit[grid, 1, stream, 256](counts, threads, np.uint32(1))
        total[1, 1, stream](counts, sums, np.uint32(size))
        works.append((size, counts, threads, sums))
    accelrt.synchronize()
    found = set()
    for size, counts, threads, sums in works:
        assert (counts.numpy() == 2).all()
        assert sums.numpy()[0] == 2 * size
        found |= set(threads.numpy()[-size:].tolist())
    return accelrt, len(found), len(grids)


def shared():
    _, threads, streams = visits()
    assert streams < threads <= streams + 3


def alone():
    _, threads, streams = visits()
    assert threads <= streams


def small():
    accelrt, module = opened()
    visit, ran_on = module.function("visit"), []
    for _ in range(20):
        counts, threads = (accelrt.zeros(16, "uint32") for _ in range(2))
        visit[16, 1](counts, threads, np.uint32(0))
        ran_on.append(len(set(threads.numpy().tolist())))
    assert min(ran_on) == 1  # one that the system stopped for a while is shared


def failing():
    accelrt, module = opened()
    count = accelrt.PinnedBuffer(4)
    words = np.frombuffer(count, np.uint32)
    words[0] = 0
    module.function("fail")[10_000, 1](count, np.uint32(40))
    with pytest.raises(
        accelrt.CudaError, match=r"LAUNCH_FAILED .*on the host device under a debugger.*'fail'"
    ):
        accelrt.synchronize()
    for device in (0, 1):  # what is known of a lost device, and the readings of the other one
        with pytest.raises(accelrt.NotSupportedError, match="no such reading"):
            accelrt.temperature(device)
    assert accelrt.device_memory_used(1) == 0
    assert 41 <= words[0] < 10_000  # what had begun ended, and nothing more began
    del words


@pytest.mark.parametrize(
    ("scenario", "threads"), [(shared, "4"), (alone, "1"), (small, "4"), (failing, "4"), (failing, "1")]
)
def test_each_block_runs_once_and_the_stream_waits_for_all(scenario, threads):
    in_child(scenario, ACCELRT_HOST_THREADS=threads)
