"""Compares the tensors of a folder's safetensors files with the signed `weights/1` commitment, one by one.

The root decides. The bundle's list of leaves only serves to name the tensor that differs, and it is checked
against the signed root before any of it is believed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bitwitness.ledger.commitments import Commitment, TensorLeaf, TensorView, tensor_leaves, tree
from bitwitness.ledger.errors import CommitmentError, FoundWrong
from bitwitness.ledger.files.safetensors_header import Header, TensorEntry, read_header

from .gating.scan import Scanned


class WeightsRefused(FoundWrong):
    """The tensors are not those that were signed; the message names them."""


@dataclass(frozen=True)
class LoadedTensor:
    """A tensor's place in a buffer that this process owns."""

    entry: TensorEntry
    data: memoryview


def collect(files: Mapping[str, bytearray]) -> dict[str, LoadedTensor]:
    """The tensors of all files by name, none copied. Raises SafetensorsError, or WeightsRefused for a name twice."""
    tensors: dict[str, LoadedTensor] = {}
    for file, data in sorted(files.items()):
        table: Header = read_header(data, file)
        view = memoryview(data)
        for entry in table.tensors:
            if entry.name in tensors:
                raise WeightsRefused(f"tensor {entry.name} is in two files")
            tensors[entry.name] = LoadedTensor(entry, view[entry.begin : entry.end])
    return tensors


def join(files: Mapping[str, Scanned]) -> tuple[list[TensorLeaf], dict[str, str]]:
    """The leaves of all files in byte order of the names, and the file that each tensor is in.

    Raises what a file's table is wrong with, or WeightsRefused for a name twice.
    """
    leaves: list[TensorLeaf] = []
    places: dict[str, str] = {}
    for file, scanned in sorted(files.items()):
        if scanned.fault is not None:
            raise scanned.fault
        for leaf in scanned.leaves:
            if leaf.name in places:
                raise WeightsRefused(f"tensor {leaf.name} is in two files")
            places[leaf.name] = file
            leaves.append(leaf)
    return sorted(leaves, key=lambda leaf: leaf.name), places


def views(files: Mapping[str, Scanned]) -> dict[str, LoadedTensor]:
    """The tensors in the memory that was kept of the files; none if none was."""
    return {
        entry.name: LoadedTensor(entry, scanned.memory[entry.begin : entry.end])
        for scanned in files.values()
        if scanned.memory is not None and scanned.header is not None
        for entry in scanned.header.tensors
    }


def leaves_of(tensors: Mapping[str, LoadedTensor]) -> list[TensorLeaf]:
    """Hash every tensor (on a few threads) into its leaf, in byte order of the names."""
    views: dict[str, TensorView] = {
        name: (tensor.entry.dtype, tensor.entry.shape, tensor.data) for name, tensor in tensors.items()
    }
    try:
        return tensor_leaves(views)
    except CommitmentError as error:
        raise WeightsRefused(str(error)) from error


def compare(found: Sequence[TensorLeaf], listed: Sequence[TensorLeaf], signed: Commitment, dtype: str) -> str:
    """Return one line for a match; raises WeightsRefused that names every tensor that differs.

    ``found`` was hashed from the files, ``listed`` is what the bundle says, ``signed`` and ``dtype`` what the release
    says.
    """
    if commitment_of(listed) != signed:
        if commitment_of(found) == signed:
            raise WeightsRefused("the tensors match the release, but the bundle's list of them does not")
        raise WeightsRefused("neither the tensors nor the bundle's list of them match the signed weights root")
    by_name = {leaf.name: leaf for leaf in listed}
    wrong = []
    for leaf in found:
        expected = by_name.pop(leaf.name, None)
        if expected is None:
            wrong.append(f"{leaf.name} is not in the release")
        elif (leaf.dtype, leaf.shape) != (expected.dtype, expected.shape):
            wrong.append(
                f"{leaf.name} is {leaf.dtype} {list(leaf.shape)}, signed {expected.dtype} {list(expected.shape)}"
            )
        elif leaf.digest != expected.digest:
            wrong.append(f"{leaf.name} has other values (digest {leaf.digest[:16]}…, signed {expected.digest[:16]}…)")
    wrong.extend(f"{name} is missing" for name in by_name)
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise WeightsRefused("; ".join(wrong[:5]) + more)
    if commitment_of(found) != signed:
        raise WeightsRefused("the tensors do not match the signed weights root")
    for leaf in found:
        if leaf.dtype != dtype:
            raise WeightsRefused(f"{leaf.name} is {leaf.dtype}, the release says that its tensors are {dtype}")
    total = sum(leaf.nbytes for leaf in found)
    return f"{len(found)} tensors, {total} bytes, root {signed.root[:16]}… recomputed from the bytes"


def compare_some(
    found: Sequence[TensorLeaf], wanted: Collection[str], listed: Sequence[TensorLeaf], signed: Commitment
) -> str:
    """Return one line if all ``wanted`` tensors were found as they are signed; raises WeightsRefused."""
    if commitment_of(listed) != signed:
        raise WeightsRefused("the bundle's list of tensors does not match the signed weights root")
    expected = {leaf.name: leaf for leaf in listed}
    absent = sorted(set(wanted) - expected.keys())
    if absent:
        raise WeightsRefused(f"the release has no tensor {absent[0][:200]!a}")
    by_name = {leaf.name: leaf for leaf in found}
    if len(by_name) != len(found):
        raise WeightsRefused("a tensor is in two files")
    wrong = [f"{name} is missing" for name in sorted(wanted) if name not in by_name]
    wrong += [f"{name} is not as signed" for name in sorted(by_name) if by_name[name] != expected[name]]
    if wrong:
        raise WeightsRefused("; ".join(wrong[:5]))
    total = sum(leaf.nbytes for leaf in found)
    return f"{len(found)} of {len(listed)} tensors, {total} bytes, lead to the signed root; no other byte was read"


def commitment_of(leaves: Sequence[TensorLeaf]) -> Commitment:
    return tree("weights/1", [leaf.encode() for leaf in leaves])
