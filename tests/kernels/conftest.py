"""Shared fixtures of the kernel tests: public vectors, a fixed hypothesis profile, native against reference."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# The same examples on every machine and every run: a red test can be met again.
settings.register_profile("bitwitness", deadline=None, derandomize=True)
settings.load_profile("bitwitness")

Array = np.ndarray[Any, Any]
THREADS = (1, 2, 3)


@pytest.fixture(scope="session")
def vectors() -> pathlib.Path:
    """The folder of public test vectors ($BITWITNESS_VECTORS, or shared/vectors beside the checkout)."""
    default = pathlib.Path(__file__).parents[3] / "shared" / "vectors"
    folder = pathlib.Path(os.environ.get("BITWITNESS_VECTORS", default))
    if not folder.is_dir():
        pytest.skip(f"public vectors are not at {folder}; set BITWITNESS_VECTORS")
    return folder


def _values(flavour: str, seed: int, *shape: int) -> Array:
    """float32 numbers of one kind, the same for the same seed.

    normal      what training sees
    wide        exponents from 2^-60 to 2^60: sums lose most of what they add
    tiny        subnormals and numbers just above, both zeros
    huge        within a few binades of the greatest number: sums and products overflow
    special     normal ones, with both zeros, infinities, NaNs and subnormals strewn in
    bits        any 32 bits
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(shape).astype(np.float32)
    if flavour == "normal":
        return normal
    if flavour == "wide":
        return np.ldexp(normal, rng.integers(-60, 61, shape)).astype(np.float32)
    if flavour == "tiny":
        magnitude = rng.integers(0, 3 << 23, shape).astype(np.uint32)
        magnitude[rng.random(shape) < 0.2] = 0
        return (magnitude | rng.integers(0, 2, shape).astype(np.uint32) << np.uint32(31)).view(np.float32)
    if flavour == "huge":
        exponents = rng.integers(250 << 23, 255 << 23, shape).astype(np.uint32)
        return (exponents | rng.integers(0, 2, shape).astype(np.uint32) << np.uint32(31)).view(np.float32)
    if flavour == "special":
        strange = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 1.0, -1.0],
            dtype=np.float32,
        )
        # few in a long row, or every sum would be NaN
        chosen = rng.random(shape) < min(0.2, 2.0 / shape[-1])
        return np.where(chosen, rng.choice(strange, shape), normal).astype(np.float32)
    if flavour == "bits":
        return rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
    raise ValueError(flavour)


def _canonical(array: Array) -> Array:
    """The bits of an array, every NaN written as 7FC00000."""
    if array.dtype != np.float32:
        return array
    bits = array.view(np.uint32).copy()
    bits[np.isnan(array)] = 0x7FC00000
    return bits


def _copies(arrays: tuple[Array, ...]) -> list[Array]:
    """Copies of arrays; one that occurs twice stays one."""
    made = {id(a): a.copy() for a in arrays}
    return [made[id(a)] for a in arrays]


def _same_bits(name: str, *arrays: Array, **attributes: float) -> None:
    """Run an operator natively, at 1, 2 and 3 threads, and in the reference; every operand must end equal."""
    from bitwitness.kernels import reference
    from bitwitness.kernels.program import call

    expected = _copies(arrays)
    reference.call(name, *expected, **attributes)
    for threads in THREADS:
        got = _copies(arrays)
        call(name, *got, threads=threads, **attributes)
        for position, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            a, b = _canonical(ours), _canonical(theirs)
            if not np.array_equal(a, b):
                at = tuple(int(i) for i in np.argwhere(a != b)[0])
                pytest.fail(
                    f"{name}: operand {position} {list(a.shape)} at {threads} threads, element {at}: native "
                    f"{int(a[at]):08x}, reference {int(b[at]):08x}; {int((a != b).sum())} differ; {attributes}"
                )


@pytest.fixture(scope="session")
def values() -> Callable[..., Array]:
    """values(flavour, seed, *shape) -> float32 array."""
    return _values


@pytest.fixture(scope="session")
def same_bits() -> Callable[..., None]:
    """same_bits(operator, *arrays, **attributes): native equals reference, bit for bit."""
    return _same_bits
