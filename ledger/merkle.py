"""The Merkle tree of RFC 6962 and RFC 9162, section 2.1, over SHA-256. Bytes in, bytes out.

A tree of n leaves is the perfect left subtree of the largest power of two below n beside the tree of the
rest. Only perfect subtrees are ever stored: node (level, index) covers leaves [index << level, (index + 1) <<
level). They never change once complete, and every root and proof of every size is made from O(log n) of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from .errors import ProofError

HASH_SIZE = 32
MAX_SIZE = 2**63 - 1
EMPTY_ROOT = hashlib.sha256(b"").digest()

GetNode = Callable[[int, int], bytes]
"""(level, index) -> hash of that perfect subtree."""

Node = tuple[int, int, bytes]
"""(level, index, hash)."""


def leaf_hash(data: bytes | memoryview) -> bytes:
    """SHA-256(0x00 ‖ data)."""
    digest = hashlib.sha256(b"\x00")
    digest.update(data)
    return digest.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 ‖ left ‖ right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaf_hashes: Iterable[bytes]) -> bytes:
    """The root over leaf hashes in order; SHA-256 of nothing for none.

    Pairing neighbours and promoting an odd last one gives the recursive tree of the RFC.
    """
    level = list(leaf_hashes)
    if not level:
        return EMPTY_ROOT
    _check_hashes(*level)
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level = paired
    return level[0]


def perfect_nodes(low: int, high: int) -> list[tuple[int, int]]:
    """The perfect subtrees (level, index), left to right, that tile the leaves [low, high) of a tree.

    `low` must be a multiple of the largest power of two that is at most high - low, as every range of a proof
    is.
    """
    nodes = []
    while low < high:
        level = (high - low).bit_length() - 1
        nodes.append((level, low >> level))
        low += 1 << level
    return nodes


def range_hash(low: int, high: int, get_node: GetNode) -> bytes:
    """The hash of the subtree over leaves [low, high), made from stored perfect subtrees."""
    hashes = [get_node(level, index) for level, index in perfect_nodes(low, high)]
    folded = hashes.pop()
    while hashes:
        folded = node_hash(hashes.pop(), folded)
    return folded


def root_from_nodes(size: int, get_node: GetNode) -> bytes:
    """The root of the first `size` leaves, from stored perfect subtrees: at most 63 of them."""
    _check_size(size)
    return range_hash(0, size, get_node) if size else EMPTY_ROOT


def inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """The leaf ranges whose hashes are the inclusion proof of `index` in a tree of `size`, leaf upwards."""
    _check_size(index, size)
    if index >= size:
        raise ProofError(f"there is no leaf {index} in a tree of {size}")
    low, high = 0, size
    ranges = []
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            ranges.append((middle, high))
            high = middle
        else:
            ranges.append((low, middle))
            low = middle
    return ranges[::-1]


def consistency_ranges(size1: int, size2: int) -> list[tuple[int, int]]:
    """The leaf ranges whose hashes are the consistency proof from `size1` to `size2` (RFC 9162, 2.1.4.1)."""
    _check_size(size1, size2)
    if not 0 < size1 <= size2:
        raise ProofError(f"there is no consistency proof from size {size1} to size {size2}")
    low, high = 0, size2
    ranges: list[tuple[int, int]] = []
    while size1 != high:
        middle = low + _split(high - low)
        if size1 <= middle:
            ranges.append((middle, high))
            high = middle
        else:
            ranges.append((low, middle))
            low = middle
    if low:  # the old tree's own root is known to the verifier, an inner piece of it is not
        ranges.append((low, high))
    return ranges[::-1]


def inclusion_proof_from_nodes(index: int, size: int, get_node: GetNode) -> list[bytes]:
    """The inclusion proof of leaf `index` in the first `size` leaves, from stored perfect subtrees."""
    return [range_hash(low, high, get_node) for low, high in inclusion_ranges(index, size)]


def consistency_proof_from_nodes(size1: int, size2: int, get_node: GetNode) -> list[bytes]:
    """The consistency proof from `size1` to `size2`, from stored perfect subtrees."""
    return [range_hash(low, high, get_node) for low, high in consistency_ranges(size1, size2)]


def inclusion_proof(index: int, leaf_hashes: Sequence[bytes]) -> list[bytes]:
    """The inclusion proof of leaf `index` in the tree over all `leaf_hashes`."""
    return inclusion_proof_from_nodes(index, len(leaf_hashes), nodes_of(leaf_hashes))


def consistency_proof(size1: int, leaf_hashes: Sequence[bytes]) -> list[bytes]:
    """The consistency proof from the first `size1` leaves to all of `leaf_hashes`."""
    return consistency_proof_from_nodes(size1, len(leaf_hashes), nodes_of(leaf_hashes))


def nodes_of(leaf_hashes: Sequence[bytes]) -> GetNode:
    """The perfect subtrees over these leaves, all made at once: for several proofs, of any size up to theirs."""
    levels: list[Sequence[bytes]] = [leaf_hashes]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    return lambda level, index: levels[level][index]


def verify_inclusion(index: int, size: int, leaf_hash: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Check that `leaf_hash` is leaf `index` of the tree of `size` with `root` (RFC 9162, 2.1.3.2).

    `size` and `root` must come from a signed commitment or checkpoint, never from the prover.
    Raises ProofError, also for what is no number or no hash at all.
    """
    ranges = inclusion_ranges(index, size)
    _check_list(proof)
    if len(proof) != len(ranges):
        raise ProofError(f"the proof has {len(proof)} hashes; leaf {index} of {size} needs {len(ranges)}")
    _check_hashes(*proof, leaf_hash, root)
    computed = leaf_hash
    for (low, _high), sibling in zip(ranges, proof, strict=True):
        computed = node_hash(computed, sibling) if low > index else node_hash(sibling, computed)
    if computed != root:
        raise ProofError(f"the proof leads to root {computed.hex()}, not to the signed {root.hex()}")


def verify_consistency(size1: int, size2: int, root1: bytes, root2: bytes, proof: Sequence[bytes]) -> None:
    """Check that the tree (size2, root2) extends the tree (size1, root1) (RFC 9162, 2.1.4.2).

    `size1` is at least 1: a proof from the empty tree says nothing; see verify_extension. Raises ProofError.
    """
    ranges = consistency_ranges(size1, size2)
    _check_list(proof)
    if len(proof) != len(ranges):
        raise ProofError(f"the proof has {len(proof)} hashes; from {size1} to {size2} it needs {len(ranges)}")
    _check_hashes(*proof, root1, root2)
    # The proof starts at the largest subtree that ends at size1; it is the whole old tree when size1 is a
    # power of two, and then the verifier's own root1 stands in for it.
    given = 1 if ranges and ranges[0][1] == size1 else 0
    old = new = proof[0] if given else root1
    for (low, _high), sibling in zip(ranges[given:], proof[given:], strict=True):
        if low < size1:
            old = node_hash(sibling, old)
            new = node_hash(sibling, new)
        else:
            new = node_hash(new, sibling)
    if old != root1:
        raise ProofError(f"the proof starts from root {old.hex()}, not from {root1.hex()}")
    if new != root2:
        raise ProofError(f"the proof leads to root {new.hex()}, not to {root2.hex()}")


def verify_extension(size1: int, size2: int, root1: bytes, root2: bytes, proof: Sequence[bytes]) -> None:
    """verify_consistency that also accepts the empty old tree, with an empty proof (C2SP tlog-witness)."""
    if size1 == 0:
        _check_size(size1, size2)
        _check_list(proof)
        _check_hashes(root1, root2)
        if proof:
            raise ProofError("a proof from the empty tree has no hashes")
        if root1 != EMPTY_ROOT:
            raise ProofError(f"the empty tree's root is {EMPTY_ROOT.hex()}, not {root1.hex()}")
        if size2 == 0 and root2 != EMPTY_ROOT:
            raise ProofError(f"the empty tree's root is {EMPTY_ROOT.hex()}, not {root2.hex()}")
        return
    verify_consistency(size1, size2, root1, root2, proof)


class Frontier:
    """The right edge of a growing tree: append in O(log n), root in O(log n), 63 hashes of memory at most."""

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """`hashes` are those of perfect_nodes(0, size), left to right."""
        _check_size(size)
        _check_hashes(*hashes)
        if len(hashes) != size.bit_count():
            raise ProofError(f"a tree of {size} has {size.bit_count()} frontier hashes, not {len(hashes)}")
        self.size = size
        self._hashes = tuple(hashes)

    @classmethod
    def load(cls, size: int, get_node: GetNode) -> Frontier:
        """The frontier of the first `size` leaves of a stored tree."""
        _check_size(size)
        return cls(size, [get_node(level, index) for level, index in perfect_nodes(0, size)])

    @property
    def hashes(self) -> list[bytes]:
        """The hashes of perfect_nodes(0, size)."""
        return list(self._hashes)

    def copy(self) -> Frontier:
        """Another one of the same leaves, which grows by itself."""
        twin = Frontier.__new__(Frontier)
        twin.size, twin._hashes = self.size, self._hashes
        return twin

    def append(self, leaf: bytes) -> list[Node]:
        """Add one leaf hash; return the perfect subtrees it completes, the leaf itself (level 0) first."""
        if self.size >= MAX_SIZE:
            raise ProofError(f"a tree holds at most {MAX_SIZE} leaves")
        if len(leaf) != HASH_SIZE:
            _check_hashes(leaf)
        level, index, current, hashes = 0, self.size, leaf, self._hashes
        made: list[Node] = [(0, index, current)]
        while index & 1:
            level, index = level + 1, index >> 1
            current = node_hash(hashes[-level], current)
            made.append((level, index, current))
        self._hashes = (*(hashes[:-level] if level else hashes), current)
        self.size += 1
        return made

    def root(self) -> bytes:
        """The root of all leaves so far."""
        return _fold(self._hashes) if self._hashes else EMPTY_ROOT


@lru_cache(maxsize=1024)
def _fold(hashes: tuple[bytes, ...]) -> bytes:
    """The root over perfect subtrees, left to right. Cached: a whole batch of entries is made, and then admitted, and
    both ask for every root.
    """
    folded = hashes[-1]
    for left in reversed(hashes[:-1]):
        folded = node_hash(left, folded)
    return folded


def _split(size: int) -> int:
    """The largest power of two below `size` (size >= 2)."""
    return 1 << ((size - 1).bit_length() - 1)


def _check_size(*sizes: int) -> None:
    for size in sizes:
        if type(size) is not int or not 0 <= size <= MAX_SIZE:
            raise ProofError("a size or an index is not a number between 0 and 2^63-1")


def _check_list(proof: Sequence[bytes]) -> None:
    if not isinstance(proof, list | tuple):
        raise ProofError(f"a proof is a list of hashes, not {type(proof).__name__}")


def _check_hashes(*hashes: bytes) -> None:
    for item in hashes:
        if not isinstance(item, bytes | bytearray):
            raise ProofError(f"a hash is bytes, not {type(item).__name__}")
        if len(item) != HASH_SIZE:
            raise ProofError(f"a hash has {HASH_SIZE} bytes, not {len(item)}")
