"""How the tensors of a release lie in files: one `model.safetensors`, or numbered shards with an index.

The index is Hugging Face's `model.safetensors.index.json`. It says which file holds which tensor, and a loader goes by
it, so the gate takes it only if it says exactly what the shards' own tables say, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bitwitness.ledger import foreign_json
from bitwitness.ledger.commitments import TensorView, byte_view
from bitwitness.ledger.errors import BitwitnessError, FoundWrong, JsonError
from bitwitness.ledger.files import durable
from bitwitness.ledger.files.safetensors_header import write_file

from .folder import INDEX, WEIGHTS, is_weights_file, shard_name

# Transformers wants to know for which framework a safetensors file was written.
_METADATA = {"format": "pt"}


class TooManyShards(BitwitnessError):
    """The weights would take more files than a release may list."""


class ShardsRefused(FoundWrong):
    """The weights files of a release do not belong together, or their index says something else than they do."""


def plan(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Tensor names for each file, in order: as many as fit into ``limit`` bytes, and at least one."""
    files: list[list[str]] = [[]]
    filled = 0
    for name in sorted(sizes):
        if files[-1] and filled + sizes[name] > limit:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += sizes[name]
    return files


def write(folder: Path, tensors: Mapping[str, TensorView], limit: int, most: int = 1 << 16) -> list[str]:
    """Write tensors as `model.safetensors`, or as shards of at most ``limit`` bytes with their index; the files' names.

    Synced to disk. Raises TooManyShards before anything is written, OSError.
    """
    views = {name: (dtype, tuple(shape), byte_view(data)) for name, (dtype, shape, data) in tensors.items()}
    sizes = {name: data.nbytes for name, (_, _, data) in views.items()}
    parts = plan(sizes, limit)
    names = [WEIGHTS] if len(parts) == 1 else [shard_name(n, len(parts)) for n in range(1, len(parts) + 1)]
    if len(names) > most:
        raise TooManyShards(
            f"the weights would take {len(names)} files of {limit} bytes; a release lists at most {most}"
        )
    for name, part in zip(names, parts, strict=True):
        write_file(folder / name, {tensor: views[tensor] for tensor in part}, _METADATA)
    if len(parts) > 1:
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        durable.write_new(folder / INDEX, index_bytes(places, sum(sizes.values())))
        names.append(INDEX)
    return names


def index_bytes(places: Mapping[str, str], total: int) -> bytes:
    """The one spelling of the index: tensor name → file name, and the bytes of all tensors."""
    value = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    return (json.dumps(value, indent=2) + "\n").encode()


def check_layout(listed: Sequence[str]) -> None:
    """The weights are one file, or all of n shards and their index. Raises ShardsRefused."""
    files = sorted(name for name in listed if is_weights_file(name))
    if not files:
        raise ShardsRefused("the release lists no safetensors file")
    if files == [WEIGHTS]:
        if INDEX in listed:
            raise ShardsRefused(f"{INDEX} stands beside {WEIGHTS}: a loader could take either")
        return
    expected = [shard_name(number, len(files)) for number in range(1, len(files) + 1)]
    if files != expected:
        strange = next(name for name in [*files, *expected] if name not in files or name not in expected)
        raise ShardsRefused(f"the shards are not {expected[0]} to {expected[-1]}: {strange}")
    if INDEX not in listed:
        raise ShardsRefused(f"{INDEX} is missing, which says where the tensors of {len(files)} shards are")


def check_index(data: bytes, places: Mapping[str, str], total: int) -> None:
    """The index says of every tensor the file that holds it, and nothing more. Raises ShardsRefused."""
    try:
        value = foreign_json.parse(data)
    except JsonError as error:
        raise ShardsRefused(f"{INDEX}: {error.reason}") from error
    if not isinstance(value, dict) or value.keys() != {"metadata", "weight_map"}:
        raise ShardsRefused(f"{INDEX} does not have exactly the keys metadata and weight_map")
    if value["metadata"] != {"total_size": total}:
        raise ShardsRefused(f"{INDEX}: metadata is not the total_size {total} alone")
    if value["weight_map"] != dict(places):
        said = value["weight_map"] if isinstance(value["weight_map"], dict) else {}
        names = sorted(name for name in {*said, *places} if said.get(name) != places.get(name))
        raise ShardsRefused(f"{INDEX}: tensor {(names or ['?'])[0][:200]!a} is not where it says")
