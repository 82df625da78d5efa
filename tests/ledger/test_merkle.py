"""The tree against RFC 6962's definition, its public vectors, and the independent merkletools."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwitness.ledger import merkle
from bitwitness.ledger.errors import ProofError
from bitwitness.ledger.exchange.merkletools_format import to_merkletools

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it misses a package for SHA-3, which is not used here
    import merkletools

SIZES = range(0, 257)
LEAVES = [merkle.leaf_hash(b"%d" % n) for n in range(256)]


def definition(leaves: list[bytes]) -> bytes:
    """MTH as RFC 6962 section 2.1 writes it."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return merkle.node_hash(definition(leaves[:split]), definition(leaves[split:]))


def nodes_of(leaves: list[bytes]) -> merkle.GetNode:
    """The perfect nodes that appending one leaf at a time completes, and nothing else."""
    frontier = merkle.Frontier()
    nodes = {(level, index): value for leaf in leaves for level, index, value in frontier.append(leaf)}
    return lambda level, index: nodes[level, index]


NODE = nodes_of(LEAVES)


def reference_tree(leaves: list[bytes]) -> Any:
    tree = merkletools.MerkleTools(hash_type="sha256")
    tree.hash_function = lambda data: hashlib.sha256(b"\x01" + data)
    tree.add_leaf([leaf.hex() for leaf in leaves], do_hash=False)
    tree.make_tree()
    return tree


def test_roots_of_every_size() -> None:
    frontier = merkle.Frontier()
    for size in SIZES:
        leaves = LEAVES[:size]
        expected = definition(leaves)
        assert merkle.root(leaves) == expected
        assert merkle.root_from_nodes(size, NODE) == expected
        assert frontier.root() == expected
        assert merkle.Frontier.load(size, NODE).root() == expected
        if size < 256:
            frontier.append(LEAVES[size])


def test_every_inclusion_proof_of_every_size_equals_merkletools() -> None:
    for size in SIZES[1:]:
        tree = reference_tree(LEAVES[:size])
        root = merkle.root_from_nodes(size, NODE)
        assert tree.get_merkle_root() == root.hex()
        for index in range(size):
            proof = merkle.inclusion_proof_from_nodes(index, size, NODE)
            assert to_merkletools(proof, index, size) == tree.get_proof(index)
            merkle.verify_inclusion(index, size, LEAVES[index], proof, root)


def test_merkletools_accepts_our_proofs() -> None:
    for size in (1, 2, 3, 7, 8, 100, 255, 256):
        tree = reference_tree(LEAVES[:size])
        for index in range(size):
            proof = to_merkletools(merkle.inclusion_proof(index, LEAVES[:size]), index, size)
            assert tree.validate_proof(proof, LEAVES[index].hex(), merkle.root(LEAVES[:size]).hex())


def test_every_consistency_proof_of_every_pair_of_sizes() -> None:
    roots = [merkle.root_from_nodes(size, NODE) for size in SIZES]
    for size2 in SIZES[1:]:
        for size1 in range(1, size2 + 1):
            proof = merkle.consistency_proof_from_nodes(size1, size2, NODE)
            merkle.verify_consistency(size1, size2, roots[size1], roots[size2], proof)


def test_proofs_from_leaves_equal_those_from_nodes() -> None:
    for size in (1, 2, 5, 64, 100):
        for index in range(size):
            assert merkle.inclusion_proof(index, LEAVES[:size]) == merkle.inclusion_proof_from_nodes(index, size, NODE)
            assert merkle.consistency_proof(index + 1, LEAVES[:size]) == merkle.consistency_proof_from_nodes(
                index + 1, size, NODE
            )


def test_proofs_read_few_nodes_at_a_million() -> None:
    size, read = 1_000_003, []

    def node(level: int, index: int) -> bytes:
        assert (index + 1) << level <= size
        read.append((level, index))
        return bytes(32)

    for index in (0, 1, 524_287, 524_288, size - 1):
        read.clear()
        merkle.inclusion_proof_from_nodes(index, size, node)
        assert len(read) <= 40
        read.clear()
        merkle.consistency_proof_from_nodes(index + 1, size, node)
        assert len(read) <= 41


def test_wrong_proofs_of_every_small_size() -> None:
    """No leaf, index, size, root or proof of another position passes, and no flipped bit does."""
    for size in range(1, 17):
        leaves = LEAVES[:size]
        root = merkle.root(leaves)
        for index in range(size):
            proof = merkle.inclusion_proof(index, leaves)
            for other in range(size):
                if other != index:
                    refused(merkle.verify_inclusion, other, size, leaves[index], proof, root)
                    refused(merkle.verify_inclusion, index, size, leaves[other], proof, root)
            refused(merkle.verify_inclusion, index, size, leaves[index], [*proof, bytes(32)], root)
            if proof:
                refused(merkle.verify_inclusion, index, size, leaves[index], proof[:-1], root)
                refused(merkle.verify_inclusion, index, size, leaves[index], proof[1:], root)
            for changed in one_byte_changed(proof):
                refused(merkle.verify_inclusion, index, size, leaves[index], changed, root)
        for size1 in range(1, size + 1):
            old = merkle.root(leaves[:size1])
            proof = merkle.consistency_proof(size1, leaves)
            for changed in [*one_byte_changed(proof), [*proof, bytes(32)]]:
                refused(merkle.verify_consistency, size1, size, old, root, changed)
            for changed_root in one_byte_changed([old]):
                refused(merkle.verify_consistency, size1, size, changed_root[0], root, proof)
            for changed_root in one_byte_changed([root]):
                refused(merkle.verify_consistency, size1, size, old, changed_root[0], proof)


def one_byte_changed(proof: list[bytes]) -> list[list[bytes]]:
    changed = []
    for number, item in enumerate(proof):
        for position in range(len(item)):
            other = item[:position] + bytes([item[position] ^ 1]) + item[position + 1 :]
            changed.append([*proof[:number], other, *proof[number + 1 :]])
    return changed


def refused(verify: Any, *arguments: Any) -> None:
    with pytest.raises(ProofError):
        verify(*arguments)


def test_public_inclusion_vectors(vectors: Path) -> None:
    cases = json.loads((vectors / "merkle" / "inclusion.json").read_text())
    assert len(cases) > 50
    for case in cases:
        arguments = (
            case["leafIdx"],
            case["treeSize"],
            decode(case["leafHash"]),
            [decode(item) for item in case["proof"] or []],
            decode(case["root"]),
        )
        if case["wantErr"]:
            refused(merkle.verify_inclusion, *arguments)
        else:
            merkle.verify_inclusion(*arguments)


def test_public_consistency_vectors(vectors: Path) -> None:
    cases = json.loads((vectors / "merkle" / "consistency.json").read_text())
    assert len(cases) > 50
    for case in cases:
        arguments = (
            case["size1"],
            case["size2"],
            decode(case["root1"]),
            decode(case["root2"]),
            [decode(item) for item in case["proof"] or []],
        )
        if case["wantErr"]:
            refused(merkle.verify_consistency, *arguments)
        else:
            merkle.verify_consistency(*arguments)


def decode(text: str | None) -> bytes:
    return base64.b64decode(text or "")


def test_public_roots(vectors: Path) -> None:
    data = json.loads((vectors / "tlog" / "rfc6962_roots.json").read_text())
    leaves = [merkle.leaf_hash(bytes.fromhex(text)) for text in data["leaf_inputs_hex"]]
    assert [leaf.hex() for leaf in leaves] == data["leaf_hashes_hex"]
    for size, expected in enumerate(data["root_by_size_hex"]):
        assert merkle.root(leaves[:size]).hex() == expected


def test_the_empty_old_tree() -> None:
    """verify_consistency calls it an error, C2SP tlog-witness asks to accept it: two functions."""
    root = merkle.root(LEAVES[:5])
    refused(merkle.verify_consistency, 0, 5, merkle.EMPTY_ROOT, root, [])
    merkle.verify_extension(0, 5, merkle.EMPTY_ROOT, root, [])
    merkle.verify_extension(0, 0, merkle.EMPTY_ROOT, merkle.EMPTY_ROOT, [])
    merkle.verify_extension(3, 5, merkle.root(LEAVES[:3]), root, merkle.consistency_proof(3, LEAVES[:5]))
    refused(merkle.verify_extension, 0, 5, bytes(32), root, [])
    refused(merkle.verify_extension, 0, 5, merkle.EMPTY_ROOT, root, [bytes(32)])
    refused(merkle.verify_extension, 0, 0, merkle.EMPTY_ROOT, root, [])


@pytest.mark.parametrize("size", [-1, 2**63, 2**64, 2**64 + 1])
def test_sizes_beyond_63_bits_are_refused_not_wrapped(size: int) -> None:
    refused(merkle.verify_inclusion, 0, size, LEAVES[0], [], LEAVES[0])
    refused(merkle.verify_consistency, 1, size, LEAVES[0], LEAVES[0], [])
    refused(merkle.verify_extension, 0, size, merkle.EMPTY_ROOT, LEAVES[0], [])
    refused(merkle.root_from_nodes, size, NODE)
    refused(merkle.Frontier, size)


def test_huge_trees_verify() -> None:
    """Proofs of the largest size have up to 63 hashes and no shortcut."""
    size = merkle.MAX_SIZE
    for index in (0, 1, size // 2, size - 1):
        ranges = merkle.inclusion_ranges(index, size)
        proof = [hashlib.sha256(b"%d %d" % item).digest() for item in ranges]
        computed = LEAVES[0]
        for (low, _high), sibling in zip(ranges, proof, strict=True):
            pair = (computed, sibling) if low > index else (sibling, computed)
            computed = merkle.node_hash(*pair)
        merkle.verify_inclusion(index, size, LEAVES[0], proof, computed)


@given(st.integers(0, merkle.MAX_SIZE - 1), st.integers(1, merkle.MAX_SIZE))
def test_ranges_tile_the_tree(index: int, size: int) -> None:
    index %= size
    ranges = sorted([*merkle.inclusion_ranges(index, size), (index, index + 1)])
    assert ranges[0][0] == 0 and ranges[-1][1] == size
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))
    for low, high in ranges:
        assert sum(1 << level for level, _ in merkle.perfect_nodes(low, high)) == high - low


def test_frontier_refuses_a_wrong_edge() -> None:
    refused(merkle.Frontier, 3, [LEAVES[0]])
    refused(merkle.Frontier, 1, [b"short"])
    refused(merkle.Frontier().append, b"short")


def test_the_largest_tree_does_not_grow() -> None:
    full = merkle.Frontier(merkle.MAX_SIZE, [bytes([number]) * 32 for number in range(63)])
    refused(full.append, LEAVES[0])
    assert full.size == merkle.MAX_SIZE


def test_hashes_of_other_lengths_are_refused() -> None:
    refused(merkle.verify_inclusion, 0, 2, LEAVES[0], [b""], merkle.root(LEAVES[:2]))
    refused(merkle.verify_inclusion, 0, 1, LEAVES[0][:31], [], LEAVES[0][:31])


def test_what_is_no_hash_number_or_list_is_refused_as_a_wrong_proof_is() -> None:
    """Whoever calls from outside catches one error, whatever he was handed."""
    leaves = LEAVES[:5]
    root, proof = merkle.root(leaves), merkle.inclusion_proof(2, leaves)
    merkle.verify_inclusion(2, 5, bytearray(leaves[2]), tuple(proof), root)
    for number in ("2", 2.0, None, True, b"2", 10**5000, -(10**5000)):
        refused(merkle.verify_inclusion, number, 5, leaves[2], proof, root)
        refused(merkle.verify_inclusion, 2, number, leaves[2], proof, root)
        refused(merkle.verify_consistency, number, 5, root, root, [])
        refused(merkle.verify_consistency, 1, number, root, root, [])
        refused(merkle.verify_extension, 0, number, merkle.EMPTY_ROOT, root, [])
    for thing in ("a" * 32, None, 7, [root], memoryview(root), bytes(31), bytes(33)):
        refused(merkle.verify_inclusion, 0, 1, thing, [], thing)
        refused(merkle.verify_inclusion, 2, 5, leaves[2], [thing, *proof[1:]], root)
        refused(merkle.verify_consistency, 5, 5, thing, thing, [])
        refused(merkle.root, [thing, leaves[0]])
        refused(merkle.Frontier, 1, [thing])
    for listed in (None, 7, b"".join(proof), "a" * 3, iter(proof), dict.fromkeys(proof)):
        refused(merkle.verify_inclusion, 2, 5, leaves[2], listed, root)
        refused(merkle.verify_consistency, 2, 5, root, root, listed)
        refused(merkle.verify_extension, 0, 5, merkle.EMPTY_ROOT, root, listed)
