"""Dask workers whose RMM allocates from accelrt, and which perform collectives.

    python dask_workers.py

A plugin runs in each worker before any task: it chooses the driver, and makes accelrt's pool RMM's where RMM
is installed, so that cuDF, CuPy on RMM and accelrt share one pool.  Memory stays on a worker between tasks,
in the plugin.
"""

import importlib.util

import numpy as np
from distributed import Client, LocalCluster, WorkerPlugin, get_worker

import accelrt as cuda

WORKERS = 2


class OnAccelrt(WorkerPlugin):
    """accelrt in a worker, under RMM too."""

    name = "accelrt"

    def setup(self, worker):
        if not cuda.is_available():
            cuda.init(driver="host")
        self.kept = {}
        self.under_rmm = cuda.device(0).type == "cuda" and importlib.util.find_spec("rmm") is not None
        if self.under_rmm:
            cuda.interop.rmm.install()

    def teardown(self, worker):
        self.kept.clear()
        if self.under_rmm:
            cuda.interop.rmm.uninstall()


def load(rank, unique_id):
    """A task: rows that stay on the worker, and its place in the communicator."""
    plugin = get_worker().plugins["accelrt"]
    ordinal = rank % cuda.device_count()
    plugin.kept["comm"] = cuda.nccl.Communicator(WORKERS, unique_id, rank, device=ordinal, timeout=60)
    plugin.kept["rows"] = cuda.asarray(np.full((4, 8), rank + 1, np.float32), device=ordinal)
    return plugin.under_rmm


def sums_of_columns():
    """A task: of all workers' rows."""
    kept = get_worker().plugins["accelrt"].kept
    comm = kept["comm"]
    sums = cuda.asarray(kept["rows"].numpy().sum(0), device=comm.device_index)
    comm.all_reduce(sums)
    comm.synchronize(timeout=60)
    return sums.numpy()


def drop():
    """A task: ends the rank; how many bytes are live then."""
    kept = get_worker().plugins["accelrt"].kept
    comm = kept.pop("comm")
    comm.close()
    kept.clear()
    return cuda.memory_allocated(comm.device_index)


def main():
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(WORKERS, timeout=60)
        client.register_plugin(OnAccelrt())
        workers = sorted(client.scheduler_info()["workers"])
        unique_id = cuda.nccl.unique_id()

        def on_each(function, *arguments):
            """A task on each worker at once, each on its own: they wait for each other."""
            futures = [
                client.submit(function, *([n, *arguments] if arguments else []), workers=[each], pure=False)
                for n, each in enumerate(workers)
            ]
            return client.gather(futures)

        under_rmm = on_each(load, unique_id)
        sums = on_each(sums_of_columns)
        assert all((each == 4 * sum(range(1, WORKERS + 1))).all() for each in sums)
        where = "RMM allocates from accelrt" if all(under_rmm) else "RMM is not used, for it needs a GPU"
        print(f"each of {WORKERS} workers has the sums {sums[0][:3].tolist()}...; {where}")
        print(f"{sum(on_each(drop))} bytes are still allocated")


if __name__ == "__main__":
    main()
