"""The randomness of the reference: known answers, distributions' shape, bijections."""

import hashlib
import pathlib
import struct

import pytest

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import philox

KEY = philox.derive_key(7, "init", "model.norm.weight")


def to_float(a: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", a))[0]
    return value


def known_answers(vectors: pathlib.Path) -> list[tuple[int, list[int]]]:
    lines = (vectors / "random123" / "kat_vectors").read_text().splitlines()
    rows = [line.split() for line in lines if line.startswith("philox4x32 ")]
    return [(int(row[1]), [int(word, 16) for word in row[2:]]) for row in rows]


def test_known_answers(vectors: pathlib.Path) -> None:
    answers = known_answers(vectors)
    assert sorted(rounds for rounds, _ in answers) == [7, 7, 7, 10, 10, 10]
    for rounds, words in answers:
        counter, key, expected = words[:4], words[4:6], words[6:]
        got = philox.philox4x32((counter[0], counter[1], counter[2], counter[3]), (key[0], key[1]), rounds)
        assert list(got) == expected


def test_known_answer_without_vectors() -> None:
    """The published answer for the digits of pi, so that a machine without the vectors checks one too."""
    counter, key = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox.philox4x32(counter, key) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_key_is_the_hash_of_its_use() -> None:
    digest = hashlib.sha256(b"\0\0\0\0\0\0\0\x07init\0model.norm.weight").digest()
    assert philox.derive_key(7, "init", "model.norm.weight") == struct.unpack("<II", digest[:8])
    assert philox.derive_key(7, "init", "a") != philox.derive_key(7, "init", "b")


def test_element_takes_its_word() -> None:
    words = philox.philox4x32((5, 0, 0, 0), KEY)
    assert [philox.words_of_element(20 + i, KEY)[i] for i in range(4)] == list(words)
    # above 2^34 elements the counter's second word counts on
    assert philox.words_of_element(4 << 32, KEY) == philox.philox4x32((0, 1, 0, 0), KEY)


def test_uniform_is_24_bits() -> None:
    for e in range(100):
        u = to_float(philox.uniform(e, KEY))
        assert 0.0 <= u < 1.0 and u * 2**24 == int(u * 2**24)
        assert int(u * 2**24) == philox.words_of_element(e, KEY)[e % 4] >> 8


def test_normal_has_mean_0_and_variance_1() -> None:
    z = [to_float(philox.normal(e, KEY)) for e in range(4000)]
    mean = sum(z) / len(z)
    assert abs(mean) < 0.06 and abs(sum(x * x for x in z) / len(z) - 1) < 0.1


def test_trunc_normal_redraws_only_what_lies_outside() -> None:
    std, bound = 0x3CA3D70A, 0x3F000000  # 0.02, cut at half a standard deviation: most are redrawn
    for e in range(200):
        attempt = 0
        while abs(to_float(philox.normal(e, KEY, attempt))) > 0.5:
            attempt += 1
        assert philox.trunc_normal(e, KEY, std, bound) == f32.mul(philox.normal(e, KEY, attempt), std)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 100, 255, 256, 257, 1000])
def test_permutation_is_a_bijection(n: int) -> None:
    images = [philox.permutation(i, n, KEY, 3) for i in range(n)]
    assert sorted(images) == list(range(n))
    if n >= 100:
        assert images != list(range(n))
        assert images != [philox.permutation(i, n, KEY, 4) for i in range(n)]  # another epoch, another order
        assert images != [philox.permutation(i, n, KEY, 3 + (1 << 32)) for i in range(n)]
