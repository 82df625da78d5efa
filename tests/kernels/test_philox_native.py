"""The native generator and its Python face: known answers, keys, permutations as in the reference."""

import numpy as np
import pytest

from bitwitness.kernels import _native, philox
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.reference import philox as reference


def test_known_answers(vectors):
    lines = (vectors / "random123" / "kat_vectors").read_text().splitlines()
    rows = [line.split()[1:] for line in lines if line.startswith("philox4x32 ")]
    assert len(rows) == 6
    for row in rows:
        words = [int(word, 16) for word in row[1:]]
        assert list(_native.philox4x32(tuple(words[:4]), tuple(words[4:6]), int(row[0]))) == words[6:]


def test_random_counters_as_in_the_reference():
    rng = np.random.default_rng(1)
    for words in rng.integers(0, 2**32, (500, 6)).tolist():
        counter, key = tuple(words[:4]), tuple(words[4:])
        assert _native.philox4x32(counter, key) == reference.philox4x32(counter, key)


@pytest.mark.parametrize("seed", [0, 1, 7, 2**63, 2**64 - 1])
def test_keys(seed):
    for purpose, name in [("init", "model.embed_tokens.weight"), ("windows", ""), ("", "x")]:
        assert philox.derive_key(seed, purpose, name) == reference.derive_key(seed, purpose, name)


def test_bad_keys():
    for bad in [(-1, "a", "b"), (1 << 64, "a", "b"), (1, "é", "b"), (1, "a\0", "b")]:
        with pytest.raises(KernelError):
            philox.derive_key(*bad)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097])
def test_permutations(n):
    key = reference.derive_key(5, "windows", "train")
    for epoch in (0, 1, (1 << 32) + 1):
        images = [philox.permutation(i, n, key, epoch) for i in range(n)]
        assert sorted(images) == list(range(n))
        sample = range(0, n, max(1, n // 50))
        assert [images[i] for i in sample] == [reference.permutation(i, n, key, epoch) for i in sample]


@pytest.mark.parametrize("n", [2**31 - 1, 2**32, 2**32 + 1, 10**12, 2**62 + 1, 2**63 - 1])
def test_permutations_of_many(n):
    key = reference.derive_key(6, "windows", "train")
    for i in [0, 1, n // 3, n - 1]:
        assert philox.permutation(i, n, key, 9) == reference.permutation(i, n, key, 9)


def test_bad_permutations():
    key = (1, 2)
    for i, n in [(-1, 4), (4, 4), (0, 0), (0, 1 << 63)]:
        with pytest.raises(KernelError):
            philox.permutation(i, n, key)
