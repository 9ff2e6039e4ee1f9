"""The stand-in for NVIDIA's libcuda, which the tests of the cuda driver share."""

import pytest
from compiled import compile_libcuda


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The folder of the stand-in, for LD_LIBRARY_PATH."""
    return compile_libcuda(tmp_path_factory.mktemp("libcuda"))
