"""The first place in which two parties' traces of one step differ: an operator, an input, or what the host did.

    found = culprit.find(ours, theirs, threads=2)
    found.place, found.element, found.ours, found.theirs, found.ulp

Traces with the same script are bisected over their trees. Where the scripts differ, one party did something between
runs that the other did not (a value changed outside any operator, another program); what both had done before that is
compared leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.tracing import dispute, trace
from bitwitness.kernels.tracing.trace import Place, first_difference
from bitwitness.kernels.tracing.trace_file import CHUNK_BYTES, DTYPES, Array, TraceFile, bits, program_json
from bitwitness.kernels.tracing.trace_record import TraceRecord, operand_name


class NotReproduced(KernelError):
    """This machine does not compute again what its own trace says: memory, processor or program are not sound."""


@dataclass(frozen=True)
class Element:
    """Where two arrays first differ: flat index, both values as the hex of their bits, distance in ULP.

    The distance of numbers is that of their places among all binary32 numbers, of integers their difference; None
    where one is a NaN.
    """

    index: int
    ours: str
    theirs: str
    ulp: int | None
    floating: bool = True


@dataclass(frozen=True)
class Difference:
    """What differs first. `leaf` is its number in the trace, -1 for something that the host did between runs."""

    kind: str  # operator, input, host, program
    leaf: int
    questions: int  # hashes of the other party that were looked at
    what: str  # one line
    place: Place | None = None
    chunk: int = 0
    element: Element | None = None
    slot: str = ""
    missing: tuple[str, ...] = ()  # parties whose values are not at hand
    dispute: TraceFile | None = None


def find(
    ours: TraceRecord, theirs: TraceRecord, *, names: tuple[str, str] = ("ours", "theirs"), threads: int = 1
) -> Difference | None:
    """The first difference, or None. For an operator, `dispute` is made where the inputs are at hand.

    Raises NotReproduced, KernelError.
    """
    if ours.trace.root == theirs.trace.root:
        return None
    questions = 0
    if ours.script.script == theirs.script.script:

        def node(level: int, index: int) -> bytes:
            nonlocal questions
            questions += 1
            return theirs.trace.node(level, index)

        leaf = first_difference(ours.trace, theirs.trace.size, node)
    else:
        common = _common_actions(ours.script, theirs.script)
        leaf, questions = _first_of_common(ours, theirs, common)
        if leaf is None:
            return _host(ours, theirs, common, questions)
    assert leaf is not None
    place = ours.places[leaf]
    assert place is not None
    if place.view is None:
        return _input(ours, theirs, leaf, place, questions, names)
    return _operator(ours, theirs, leaf, place, questions, names, threads)


def _common_actions(a: TraceFile, b: TraceFile) -> int:
    """How many actions, from the first, are the same for both, and on the same memory."""
    memory, others = ({slot.name: slot for slot in file.slots} for file in (a, b))
    count = 0
    for one, other in zip(a.actions, b.actions, strict=False):
        if one != other or any(memory.get(name) != others.get(name) for name in _slots_of(one)):
            break
        if "run" in one and program_json(a.programs[one["run"]]) != program_json(b.programs[other["run"]]):
            break
        count += 1
    return count


def _slots_of(action: Mapping[str, Any]) -> list[str]:
    return [action[key] for key in ("load", "zero") if key in action] + list(action.get("with", []))


def _first_of_common(ours: TraceRecord, theirs: TraceRecord, common: int) -> tuple[int | None, int]:
    """The first leaf of the first `common` actions that differs, and the hashes looked at."""
    looked = 0
    for leaf, place in enumerate(ours.places):
        if place is None:
            continue
        if place.action >= common:
            break
        looked += 1
        if ours.trace.leaves[leaf] != theirs.trace.leaves[leaf]:
            return leaf, looked
    return None, looked


def _input(
    ours: TraceRecord, theirs: TraceRecord, leaf: int, place: Place, questions: int, names: tuple[str, str]
) -> Difference:
    arrays = [None if r.file is None else r.file.tensors[place.tensor] for r in (ours, theirs)]
    missing = tuple(name for name, array in zip(names, arrays, strict=True) if array is None)
    element = first_element(arrays[0], arrays[1]) if arrays[0] is not None and arrays[1] is not None else None
    slot = place.tensor.rpartition("/")[0]
    what = f"the input {slot} of the step, which no operator wrote"
    return Difference("input", leaf, questions, what, place, 0, element, slot, missing)


def _operator(
    ours: TraceRecord,
    theirs: TraceRecord,
    leaf: int,
    place: Place,
    questions: int,
    names: tuple[str, str],
    threads: int,
) -> Difference:
    assert place.view is not None
    mine, others = ours.trace.chunks[leaf], theirs.trace.chunks[leaf]
    chunk = next(i for i, (a, b) in enumerate(zip(mine, others, strict=True)) if a != b)
    per_chunk = CHUNK_BYTES // DTYPES[place.view.dtype].itemsize
    begin, end = chunk * per_chunk, min((chunk + 1) * per_chunk, place.view.size)
    claims = {names[0]: mine[chunk].hex(), names[1]: others[chunk].hex()}
    small, again = None, None
    source = ours.file or theirs.file
    if source is not None:
        small = dispute.extract(source, place.run, place.call, operand_name(place), chunk, claims, threads)
        _same_before(trace.run(_without_expectations(source), threads), ours, leaf)
        again = _output(small, threads)
    pieces = []
    for record, claim in ((ours, mine[chunk]), (theirs, others[chunk])):
        piece = record.values[leaf].reshape(-1)[begin:end] if leaf in record.values else again
        pieces.append(piece if piece is not None and trace.chunk_hashes(piece)[0] == claim else None)
    missing = tuple(name for name, piece in zip(names, pieces, strict=True) if piece is None)
    element = None
    if pieces[0] is not None and pieces[1] is not None:
        inside = first_element(pieces[0], pieces[1])
        assert inside is not None
        element = replace(inside, index=begin + inside.index)
    what = f"{place.op} writes other bits to {operand_name(place)}"
    return Difference("operator", leaf, questions, what, place, chunk, element, place.view.name, missing, small)


def _same_before(again: trace.Trace, ours: TraceRecord, leaf: int) -> None:
    """What the disputed call read must be what both parties agreed upon."""
    for number in range(1, leaf):
        if again.leaves[number] != ours.trace.leaves[number]:
            raise NotReproduced(
                f"leaf {number} of the trace, which both parties agree upon, comes out differently on this machine: "
                "check it with `python -m bitwitness.kernels`, and settle the dispute on another one"
            )


def _without_expectations(file: TraceFile) -> TraceFile:
    """The same without commitments: what they come to is not asked here. The script, and its leaf, are another's."""
    actions = [action for action in file.actions if "commit" not in action and "chunk" not in action]
    return TraceFile(file.tensors, file.slots, file.programs, [], actions)


def _output(small: TraceFile, threads: int) -> Array:
    """The elements that a dispute is about, as this machine computes them."""
    action = small.actions[-1]
    slots = trace.run(small, threads).slots
    return slots[action["chunk"]].reshape(-1)[action["begin"] : action["end"]].copy()


def _host(ours: TraceRecord, theirs: TraceRecord, common: int, questions: int) -> Difference:
    """The scripts part after `common` actions, and nothing before differs."""
    touched = _touched(ours.script, theirs.script, common)
    if touched is None:
        what = "the parties ran other programs: another configuration, another --windows-at-once, or another release"
        return Difference("program", -1, questions, what)
    before = sum("run" in action for action in ours.script.actions[:common])
    what = f"{touched} was changed between two runs, by no operator, before run {before}"
    element, missing = None, ()
    if ours.file is not None and theirs.file is not None:
        element = first_element(*(_slot_after(file, common, touched) for file in (ours.file, theirs.file)))
    return Difference("host", -1, questions, what, None, 0, element, touched, missing)


def _touched(a: TraceFile, b: TraceFile, common: int) -> str | None:
    """The first slot that only one party's host wrote before the next run, None where the programs differ."""
    one, other = (_written_by_host(file, common) for file in (a, b))
    touched = next((slot for slot in [*one, *other] if one.get(slot) != other.get(slot)), None)
    memory, others = ({slot.name: slot for slot in file.slots} for file in (a, b))
    return None if touched is None or memory.get(touched) != others.get(touched) else touched


def _written_by_host(file: TraceFile, begin: int) -> dict[str, Mapping[str, Any]]:
    """The loads and zeros from an action on to the next run or commitment, by slot."""
    found: dict[str, Mapping[str, Any]] = {}
    for action in file.actions[begin:]:
        if "load" not in action and "zero" not in action:
            break
        found[action.get("load") or action["zero"]] = action
    return found


def _slot_after(file: TraceFile, begin: int, slot: str) -> Array:
    """What a slot holds where the first run or commitment from action `begin` on begins."""
    end = begin + len(_written_by_host(file, begin))
    part = TraceFile(file.tensors, file.slots, file.programs, [], file.actions[:end])
    return trace.run(_without_expectations(part), 1).slots[slot]


def first_element(ours: Array, theirs: Array) -> Element | None:
    """The first element in which two arrays of one dtype and size differ, bit for bit; NaNs are one."""
    a, b = (_canonical_bits(array).reshape(-1) for array in (ours, theirs))
    at = np.flatnonzero(a != b)
    if not len(at):
        return None
    index = int(at[0])
    x, y = int(a[index]), int(b[index])
    digits = 2 * ours.itemsize
    return Element(index, f"{x:0{digits}x}", f"{y:0{digits}x}", _distance(x, y, ours.dtype), ours.dtype.kind == "f")


def _canonical_bits(array: Array) -> Array:
    found = bits(np.ascontiguousarray(array))
    return np.where(np.isnan(array), found.dtype.type(0x7FC00000), found) if array.dtype.kind == "f" else found


def _distance(x: int, y: int, dtype: Any) -> int | None:
    width = 8 * int(dtype.itemsize)
    sign = 1 << (width - 1)
    if dtype.kind != "f":
        signed = [value - 2 * sign if value & sign else value for value in (x, y)]
        return abs(signed[0] - signed[1])
    if 0x7FC00000 in (x, y):
        return None
    placed = [-(value & (sign - 1)) if value & sign else value for value in (x, y)]
    return abs(placed[0] - placed[1])
