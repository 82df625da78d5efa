"""Recomputes what a derived release says of its weights, bit for bit (docs/formats/derivations.md).

A cast rounds every element of one F32 release to BF16 or F16, nearest even, in integer steps. A merge is the weighted
sum of F32 releases, element by element, by the operator `matmul_nn` of the run's arithmetic: one chain of fused
multiply-adds from +0 in the order of the sources. Neither knows threads, tiles or processor flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwitness.ledger.commitments import Commitment, TensorLeaf, TensorView, tensor_leaves
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.jcs import f32_from_hex

from . import weights

# Elements that are merged at a time; not in the bits.
_CHUNK = 1 << 16
Tensors = Mapping[str, weights.LoadedTensor]


class DerivationWrong(FoundWrong):
    """The rule gives other weights than the release names; the message names the first tensor that differs."""


class DerivationRefused(BitwitnessError):
    """Releases that cannot be cast or merged."""


def derive(rule: str, dtype: str, sources: Sequence[Tensors], factors: Sequence[float]) -> dict[str, TensorView]:
    """The tensors that ``rule`` gives: name → (dtype, shape, little-endian bytes). Raises DerivationRefused."""
    names = [sorted(tensors) for tensors in sources]
    if any(other != names[0] for other in names):
        raise DerivationRefused("the sources do not have the same tensors")
    made: dict[str, TensorView] = {}
    for name in names[0]:
        parts = [tensors[name] for tensors in sources]
        shape = parts[0].entry.shape
        if any(part.entry.shape != shape or part.entry.dtype != "F32" for part in parts):
            raise DerivationRefused(f"{name} has not one shape in F32 in all sources")
        data = _cast(parts[0].data, dtype) if rule == "cast/1" else _merge([part.data for part in parts], factors)
        made[name] = (dtype, shape, data)
    return made


def recompute(release: Mapping[str, Any], sources: Sequence[Tensors]) -> str:
    """One line if the sources give the weights that the release names; raises DerivationWrong, DerivationRefused.

    ``sources`` are in the order of the release's derivation, each already compared with its own commitment.
    """
    said = release["derivation"]
    factors = [f32_from_hex(source["factor"]) for source in said["sources"] if "factor" in source]
    found = check_root(release, tensor_leaves(derive(said["rule"], release["dtype"], sources, factors)))
    return f"{said['rule']} to {release['dtype']} of {len(sources)} sources recomputed: root {found.root[:16]}…"


def check_root(release: Mapping[str, Any], leaves: Sequence[TensorLeaf]) -> Commitment:
    """The commitment over the leaves of a derived release, if it is the one that it names. Raises DerivationWrong."""
    said, found = release["derivation"], weights.commitment_of(leaves)
    if found != Commitment.from_json(release["weights"], type="weights/1"):
        raise DerivationWrong(
            f"{said['rule']} of {len(said['sources'])} sources gives root {found.root[:16]}…, "
            f"the release says {release['weights']['root'][:16]}…"
        )
    return found


def leaves_of(tensors: Mapping[str, TensorView]) -> list[TensorLeaf]:
    return tensor_leaves(tensors)


def _cast(data: memoryview, dtype: str) -> memoryview:
    import numpy as np

    from bitwitness.trainer.models import narrow

    result = narrow.narrow(data, dtype)
    infinite = {"BF16": 0x7F80, "F16": 0x7C00}[dtype]
    if ((np.frombuffer(result, dtype="<u2") & 0x7FFF) >= infinite).any():
        raise DerivationRefused(f"a weight is too large for {dtype}, or not finite")
    return result


def _merge(parts: Sequence[memoryview], factors: Sequence[float]) -> memoryview:
    import numpy as np

    from bitwitness.kernels.program import Executor, ProgramBuilder

    def executor(columns: int) -> Executor:
        b = ProgramBuilder()
        f = b.buffer("factors", (1, len(parts)), kind="input")
        x = b.buffer("sources", (len(parts), columns), kind="input")
        y = b.buffer("merged", (1, columns), kind="output")
        b.call("matmul_nn", f, x, y, accumulate=0)
        return Executor(b.build(), 1)

    arrays = [np.frombuffer(part, dtype="<f4") for part in parts]
    total = len(arrays[0])
    result = np.empty(total, dtype="<f4")
    given = np.array([factors], dtype="<f4")
    ready: dict[int, Executor] = {}
    for at in range(0, total, _CHUNK):
        columns = min(_CHUNK, total - at)
        if columns not in ready:
            ready[columns] = executor(columns)
        block = np.stack([array[at : at + columns] for array in arrays])
        merged = np.empty((1, columns), dtype="<f4")
        ready[columns].run({"factors": given, "sources": block, "merged": merged})
        result[at : at + columns] = merged[0]
    if not np.isfinite(result).all():
        raise DerivationRefused("the merge of a weight is not finite")
    return result.data.cast("B")
