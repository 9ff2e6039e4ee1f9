"""An image that is turned: read through a texture, which interpolates, and written through a surface.

python warped_image.py
"""

import math
import os

import numpy as np

import accelrt

SIDE = 256
SOURCE = r"""
extern "C" __global__ void turn(cudaTextureObject_t image, cudaSurfaceObject_t turned, float c, float s,
                                int side) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= side || y >= side) return;
    const float u = (x + 0.5f) / side - 0.5f, v = (y + 0.5f) / side - 0.5f;
    const float value = tex2D<float>(image, c * u - s * v + 0.5f, s * u + c * v + 0.5f);
    surf2Dwrite(value, turned, x * (int)sizeof(float), y);
}
"""
SIGNATURE = "cudaTextureObject_t image, cudaSurfaceObject_t turned, float c, float s, int side"


def rings() -> np.ndarray:
    """Draws rings around the middle."""
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5) / SIDE - 0.5
    return (0.5 + 0.5 * np.cos(40 * np.hypot(x, y))).astype(np.float32)


def run() -> None:
    """Turns an image that is the same however it is turned."""
    kernel = accelrt.compile(SOURCE).function("turn", SIGNATURE)
    image = rings()
    source = accelrt.CUDAArray(image.shape, "float32")
    target = accelrt.CUDAArray(image.shape, "float32", surface=True)
    source.copy_from(image)
    texture = accelrt.TextureObject(
        source, filter_mode="linear", address_mode="border", normalized_coords=True
    )
    angle = math.radians(30)
    with accelrt.SurfaceObject(target) as surface:
        blocks = (SIDE // 16, SIDE // 16)
        kernel[blocks, (16, 16)](texture, surface, math.cos(angle), math.sin(angle), SIDE)
    turned = np.empty_like(image)
    target.copy_to(turned)
    middle = np.s_[SIDE // 4 : -SIDE // 4, SIDE // 4 : -SIDE // 4]  # no corner comes from outside
    error = np.abs(turned - image)[middle].max()
    assert error < 0.02
    print(f"turned by 30 degrees, the rings are off by {error:.4f} at most: right")


def main() -> None:
    if not accelrt.is_available() or os.environ.get("ACCELRT_DRIVER") == "host":
        accelrt.init(driver="host")  # which interpolates as CUDA's guide says
    run()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
