"""The file of a version that says which function its weights belong to: `config.json`, or `model.json`.

For the built-in model it is a Llama's configuration (model_config.py). For a model of the trainer's own it is the
program that the genesis commits to, as docs/formats/captured-model.md has it, and no `config.json`: libraries would
take that for another function. The gate reads the program, and neither runs nor judges it; audits run it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import TensorLeaf
from bitwitness.ledger.errors import FoundWrong, JsonError
from bitwitness.ledger.files.captured_file import MODEL_LIMIT

from .bundles.lineage import RunLine
from .folder import CONFIG, PROGRAM
from .model_config import ConfigRefused, check_config, differences

FORMAT = "captured/1"
_MODULE = re.compile(r"[A-Za-z0-9._/-]{1,200}:[A-Za-z0-9_]{1,100}")


class ProgramRefused(FoundWrong):
    """`model.json` is not the program of the run, or the weights are not its parameters."""


@dataclass(frozen=True)
class Description:
    """The file's name and bytes."""

    name: str
    data: bytes


def is_own(genesis: Mapping[str, Any]) -> bool:
    """Whether a run is one of a model of the trainer's own."""
    return "model" in genesis


def module_of(genesis: Mapping[str, Any]) -> str:
    """`FILE.py:CLASS`, as the configuration of a run of a model of the trainer's own names it."""
    # The genesis schema leaves the configuration free, so a signed one may hold anything.
    model = genesis["config"].get("model")
    named = model.get("module") if isinstance(model, Mapping) else None
    return named if isinstance(named, str) and _MODULE.fullmatch(named) else "unnamed"


def of_config(config: Mapping[str, Any]) -> Description:
    """`config.json`, of what it says."""
    return Description(CONFIG, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


def of_program(program: bytes | None, genesis: Mapping[str, Any]) -> Description:
    """`model.json`. Raises ProgramRefused where it is missing, or not what the genesis commits to."""
    if program is None:
        raise ProgramRefused(f"the run's {PROGRAM} is missing; it lies in the run's folder since its first step")
    _check_digest(program, genesis)
    return Description(PROGRAM, program)


def check_description(
    texts: Mapping[str, bytes], genesis: Mapping[str, Any], dtype: str, leaves: Sequence[TensorLeaf]
) -> str:
    """Check the one of the two files that a release of this run has, among its `texts`; one line if it follows.

    ``leaves`` are the tensors that the bundle lists. Raises ConfigRefused, ProgramRefused.
    """
    name, other = (PROGRAM, CONFIG) if is_own(genesis) else (CONFIG, PROGRAM)
    if name not in texts:
        raise ProgramRefused(f"the release lists no {name} that could be read")
    if other in texts:
        raise ProgramRefused(f"the release lists {other}, which does not follow from the run; {name} does")
    if is_own(genesis):
        return _check_program(texts[PROGRAM], genesis, leaves)
    return check_config(texts[CONFIG], genesis["config"], dtype)


def check_alike(lines: Sequence[RunLine]) -> None:
    """The runs of a merge are of one model: one program, or one configuration but for the window, and one tokenizer.

    Raises ConfigRefused, ProgramRefused.
    """
    first, *others = lines
    for line in others:
        one, other = first.genesis.predicate, line.genesis.predicate
        if is_own(one) or is_own(other):
            if not (is_own(one) and is_own(other) and one["model"]["program"] == other["model"]["program"]):
                raise ProgramRefused(f"{line} is of another program than {first}")
        else:
            differ = differences(one["config"], other["config"])
            if differ:
                raise ConfigRefused(f"{line} is of another model than {first}: they differ in {', '.join(differ)}")
        if [e.predicate["tokenizer"] for e in line.trained_on] != [e.predicate["tokenizer"] for e in first.trained_on]:
            raise ConfigRefused(f"{line} is of another tokenizer than {first}")


def _check_digest(data: bytes, genesis: Mapping[str, Any]) -> None:
    found, committed = hashlib.sha256(data).hexdigest(), genesis["model"]["program"]
    if found != committed:
        raise ProgramRefused(f"{PROGRAM} has the SHA-256 {found[:16]}…, the genesis commits to {committed[:16]}…")


def _check_program(data: bytes, genesis: Mapping[str, Any], leaves: Sequence[TensorLeaf]) -> str:
    _check_digest(data, genesis)
    try:
        program = jcs.parse(data, max_bytes=MODEL_LIMIT)
        if program["format"] != FORMAT:
            raise ProgramRefused(f"{PROGRAM} is of the form {program['format']!a:.60}; {FORMAT} is known here")
        window, given = program["window"], [(p["name"], tuple(p["shape"])) for p in program["parameters"]]
        parameters, expected = dict(given), genesis["config"]["data"]["window"]
    except (JsonError, KeyError, TypeError, ValueError) as error:
        raise ProgramRefused(f"{PROGRAM} is not a captured model") from error
    if window != expected:
        raise ProgramRefused(f"{PROGRAM} is for windows of {window!a:.20} tokens, the run has {expected!a:.20}")
    tensors = {leaf.name: leaf.shape for leaf in leaves}
    if len(parameters) != len(given) or parameters.keys() != tensors.keys():
        odd = sorted(map(str, parameters.keys() ^ tensors.keys())) or ["a name twice"]
        raise ProgramRefused(f"{PROGRAM} has other parameters than the release has tensors: {odd[0][:200]}")
    for name, shape in parameters.items():
        if shape != tensors[name]:
            raise ProgramRefused(f"{PROGRAM} has {name} of the shape {list(shape)!a:.60}, the release another")
    return f"{PROGRAM} is the program that the genesis commits to, and its {len(given)} parameters are the tensors here"
