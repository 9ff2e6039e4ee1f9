"""A graph made by hand, whose loop ends when the device says so, and which is then given other memory.

python graph_by_hand.py
"""

import os

import numpy as np

import accelrt

SOURCE = """
// Halves x, and counts how often; the loop goes on while one round is left.
extern "C" __global__ void halve(float* x, int n, unsigned* left) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] /= 2;
    if (i == 0)
        left[0] -= 1;
}
"""
ROUNDS, COUNT = 3, 1000


def make(x: accelrt.Array, out: accelrt.Array, left: accelrt.Array) -> accelrt.CUDAGraph:
    """A graph that copies x to out, and halves that as often as `left` says."""
    halve = accelrt.compile(SOURCE).function("halve", "float* x, int n, unsigned* left")
    definition = accelrt.GraphDefinition()
    copied = definition.copy(out, x, name="copy in")
    more = definition.condition(1)
    loop = definition.while_(more, after=copied, name="until none is left")
    (body,) = loop.bodies
    step = body.kernel(halve, 4, 256, (out, COUNT, left))
    body.set_condition(more, left, after=step)
    return definition.instantiate()


def run() -> None:
    """Replays it over two inputs."""
    x = accelrt.asarray(np.full(COUNT, 8, np.float32))
    out, left = accelrt.zeros(COUNT, "float32"), accelrt.asarray(np.array([ROUNDS], np.uint32))
    graph = make(x, out, left)
    graph.replay()
    assert (out.numpy() == 8 / 2**ROUNDS).all()

    scale = accelrt.elementwise("T x", "T y", "y = 2 * x")
    scale(x, out=out)  # once before, so that it is compiled
    captured = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(captured):
        scale(x, out=out)
    arguments = accelrt.GraphParameters(captured, x=x, out=out)
    other, result = accelrt.full(COUNT, 21.0, "float32"), accelrt.zeros(COUNT, "float32")
    arguments.replay(x=other, out=result)
    assert (result.numpy() == 42).all()
    print(f"{ROUNDS} rounds of a loop on the device, and a replay with other memory: right")


def main() -> None:
    if not accelrt.is_available() or os.environ.get("ACCELRT_DRIVER") == "host":
        accelrt.init(driver="host")
    run()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
