"""Another project: an extension that uses accelrt's Cython API, built where no CUDA header is in reach."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    name="downstream",
    version="1",
    packages=["downstream"],
    ext_modules=cythonize(
        [
            Extension(f"downstream.{name}", [f"downstream/{name}.pyx"])
            for name in ("graphs", "kernels", "loops")
        ],
        language_level=3,
        compiler_directives={"freethreading_compatible": True},
    ),
)
