"""Ray actors that are ranks of one communicator: each has a device, and memory that lives from call to call.

    python ray_actors.py

The id of the communicator is an argument of an actor's.  Ray gives an actor with num_gpus=1 a GPU of its own
by CUDA_VISIBLE_DEVICES, which is device 0 there; on the host device each process has all of its own.
"""

import numpy as np
import ray

import accelrt as cuda

RANKS = 2


@ray.remote
class Shard:
    """A rank, with rows of a matrix that stay on its device."""

    def __init__(self, rank, unique_id):
        if not cuda.is_available():
            cuda.init(driver="host")
        self.comm = cuda.nccl.Communicator(
            RANKS, unique_id, rank, device=rank % cuda.device_count(), timeout=60
        )
        self.rows = cuda.asarray(np.full((4, 8), rank + 1, np.float32), device=self.comm.device_index)

    def sums_of_columns(self):
        """Of all ranks' rows."""
        sums = cuda.asarray(self.rows.numpy().sum(0), device=self.comm.device_index)
        self.comm.all_reduce(sums)
        self.comm.synchronize(timeout=60)
        return sums.numpy()

    def close(self):
        """Ends the rank; how many bytes are live then."""
        self.comm.close()
        del self.rows
        return cuda.memory_allocated(self.comm.device_index)


def main():
    gpus = cuda.device_count() if cuda.is_available() else 0
    ray.init(num_cpus=RANKS, num_gpus=gpus, include_dashboard=False)
    unique_id = cuda.nccl.unique_id()
    actor = Shard.options(num_cpus=1, num_gpus=1 if gpus >= RANKS else 0)
    shards = [actor.remote(rank, unique_id) for rank in range(RANKS)]
    sums = ray.get([shard.sums_of_columns.remote() for shard in shards], timeout=120)
    assert all((each == 4 * sum(range(1, RANKS + 1))).all() for each in sums)
    print(f"each of {RANKS} actors has the sums {sums[0][:3].tolist()}...")
    left = sum(ray.get([shard.close.remote() for shard in shards], timeout=120))
    ray.shutdown()
    print(f"{left} bytes are still allocated")


if __name__ == "__main__":
    main()
