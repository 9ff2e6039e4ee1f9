"""A training step that is captured once and replayed: one launch a step instead of a call for each operation.

The model is a line, y = a*x + b, fitted to points.  The arithmetic is numpy's, in a function that the stream
calls on the host; on a GPU it would be kernels.  What makes a step fit for a graph is the same for both: it
reads and writes the same memory each time, so a new batch is copied to where the last one was.
"""

import numpy as np

import accelrt as cuda

BATCH, STEPS, RATE = 256, 200, 0.5
TRUE_LINE = (3.0, -1.0)


class Model:
    """The parameters on the device, and the page-locked memory that the arithmetic uses."""

    def __init__(self):
        self.parameters = cuda.Buffer(8)  # a and b
        self.host_batch = cuda.pinned_empty((2, BATCH), np.float32)
        self.host_parameters = cuda.pinned_empty(2, np.float32)
        self.loss = cuda.pinned_empty(1, np.float32)
        self.reset()

    def reset(self):
        self.parameters.copy_from(np.zeros(2, np.float32))

    def descend(self):
        """One step of gradient descent, on what was copied to the host."""
        x, y = self.host_batch
        a, b = self.host_parameters
        error = a * x + b - y
        self.loss[0] = (error**2).mean()
        self.host_parameters -= RATE * np.array([(error * x).mean(), error.mean()], np.float32)

    def step(self, batch):
        """Puts a step into the current stream; it returns nothing, and changes the parameters."""
        cuda.copy(self.host_batch, batch, blocking=False)
        cuda.copy(self.host_parameters, self.parameters, blocking=False)
        cuda.current_stream().launch_host_func(self.descend)
        cuda.copy(self.parameters, self.host_parameters, blocking=False)

    def line(self):
        """The parameters, once all steps are done."""
        out = np.empty(2, np.float32)
        self.parameters.copy_to(out)
        return out


def batches():
    """Points of the line; each batch is x above y."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        x = random.uniform(-1, 1, BATCH).astype(np.float32)
        yield np.stack([x, np.float32(TRUE_LINE[0]) * x + np.float32(TRUE_LINE[1])])


def train(model, step, batch):
    """Takes each batch to the memory that the step reads, and has the step run."""
    model.reset()
    for points in batches():
        batch.copy_from(points)
        step()
    cuda.synchronize()
    return model.line()


def main():
    model, batch = Model(), cuda.Buffer(2 * BATCH * 4)
    batch.fill(0)
    called = train(model, lambda: model.step(batch), batch)

    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        model.step(batch)  # recorded, not run
    replayed = train(model, graph.replay, batch)

    # The same in one call: it runs the function some times to warm up, captures it, and copies arguments that
    # lie elsewhere than the sample to where the graph reads them.
    graphed = cuda.make_graphed_callables(model.step, (batch,))
    with cuda.Buffer(batch.nbytes) as elsewhere:
        graphed_line = train(model, lambda: graphed(elsewhere), elsewhere)

    assert (called == replayed).all()
    assert (called == graphed_line).all()
    assert np.allclose(called, TRUE_LINE, atol=1e-3)
    print(f"the line is y = {called[0]:.3f}*x + {called[1]:.3f}, with a loss of {model.loss[0]:.1e}")


if __name__ == "__main__":
    if not cuda.is_available():
        cuda.init(driver="host")
    main()
    print(f"{cuda.memory_allocated()} bytes are still allocated")
