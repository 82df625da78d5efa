"""Shared fixtures of the kernel tests: where the public vectors lie, and a fixed hypothesis profile."""

import os
import pathlib

import pytest
from hypothesis import settings

# The same examples on every machine and every run: a red test can be met again.
settings.register_profile("bitwitness", deadline=None, derandomize=True)
settings.load_profile("bitwitness")


@pytest.fixture(scope="session")
def vectors() -> pathlib.Path:
    """The folder of public test vectors ($BITWITNESS_VECTORS, or shared/vectors beside the checkout)."""
    default = pathlib.Path(__file__).parents[3] / "shared" / "vectors"
    folder = pathlib.Path(os.environ.get("BITWITNESS_VECTORS", default))
    if not folder.is_dir():
        pytest.skip(f"public vectors are not at {folder}; set BITWITNESS_VECTORS")
    return folder
