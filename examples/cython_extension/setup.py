"""An extension that is built against the installed accelrt; no CUDA header is needed."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import accelrt

DECLARATIONS = Path(accelrt.__file__).parents[1]  # where accelrt/api.pxd is, of an editable install too

setup(
    name="upload",
    ext_modules=cythonize(
        [Extension("upload", ["upload.pyx"])],
        language_level=3,
        include_path=[str(DECLARATIONS)],
        compiler_directives={"freethreading_compatible": True},  # an interpreter without a GIL stays without
    ),
)
