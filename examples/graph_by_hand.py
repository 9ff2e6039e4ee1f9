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


def capture(x: accelrt.Array, out: accelrt.Array, mode: accelrt.Array) -> accelrt.CUDAGraph:
    """A captured graph that doubles x to out, or negates it, as `mode` says."""
    double = accelrt.elementwise("T x", "T y", "y = 2 * x")
    negate = accelrt.elementwise("T x", "T y", "y = -x")
    for each in (double, negate):
        each(x, out=out)  # once before, so that it is compiled
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        definition = accelrt.GraphDefinition(graph)  # of what is being captured
        chosen = definition.condition()
        definition.set_condition(chosen, mode)
        for kernel, body in zip((double, negate), definition.switch(chosen, 2).bodies, strict=True):
            with body.capture():
                kernel(x, out=out)
    return graph


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
    mode = accelrt.asarray(np.array([1], np.uint32))
    choice = capture(x, out, mode)
    choice.replay()
    assert (out.numpy() == -8).all()
    mode.fill_(0)
    choice.replay()
    assert (out.numpy() == 16).all()
    print(f"{ROUNDS} rounds of a loop on the device, a replay with other memory, and a choice: right")


def main() -> None:
    if not accelrt.is_available() or os.environ.get("ACCELRT_DRIVER") == "host":
        accelrt.init(driver="host")
    run()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
