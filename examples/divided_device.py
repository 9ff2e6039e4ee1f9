"""A device in two parts: short requests beside a long job, neither of which holds the other up.

With CUDA 13.1, and on the host device, one split makes two green contexts: the requests have a few
multiprocessors for themselves, the job has the rest, and each has a pool of memory.  Older drivers make equal
parts.  Where there are none to divide, the two have streams of different priorities.  The work is the same in
all three.
"""

import numpy as np

import accelrt as cuda
from accelrt import green_contexts

FEW, REQUESTS, SIZE = 16, 20, 1 << 14


def two_streams():
    """A stream for requests, one for the job, and how they came to be."""
    few = min(FEW, cuda.get_device_properties().multi_processor_count // 2)
    try:
        requests, job = green_contexts.split([few, None], own_pool=True)
    except (cuda.NotSupportedError, ValueError):
        try:
            requests, job = green_contexts.partition(few, 2)
        except (cuda.NotSupportedError, ValueError):
            return cuda.Stream(priority=cuda.Stream.priority_range()[1]), cuda.Stream(), "priorities"
    return requests.Stream(), job.Stream(), f"{requests.num_sms} and {job.num_sms} multiprocessors"


def run():
    urgent, long, how = two_streams()
    twice, root = (cuda.elementwise("T x", "T y", text) for text in ("y = 2 * x", "y = sqrt(x * x)"))
    numbers = np.arange(SIZE, dtype=np.float32)
    with cuda.stream(long):
        x = cuda.asarray(numbers)
        for _ in range(50):
            x = root(x)
    answers = []
    with cuda.stream(urgent):
        for number in range(REQUESTS):
            answers.append(float(twice(cuda.full(1, number, np.float32))))  # waits for this stream alone
    long.synchronize()
    assert answers == [2.0 * number for number in range(REQUESTS)]
    np.testing.assert_allclose(x.numpy(), numbers)
    return how


if __name__ == "__main__":
    if not cuda.is_available():
        cuda.init(driver="host")
    means = run()
    print(
        f"{REQUESTS} requests beside a job, by {means}; {cuda.memory_allocated()} bytes are still allocated"
    )
