"""The arithmetic of a run: the operators and functions that its programs use, each with its version.

It stands in the genesis. An operator that a run does not use is no part of it, so that a build with more operators
still replays older runs; one that is used and has changed is told by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bitwitness.kernels import ops

from ..config import RunConfig
from .programs import Decoder, StepPrograms, every_program

Json = dict[str, Any]


def arithmetic(config: RunConfig, captured: StepPrograms | None = None) -> Json:
    """What the genesis of a run says: versions by name, and a digest that covers the declarations too."""
    programs = every_program(config, captured or Decoder(config))
    operators = {call.op for program in programs for call in program.calls}
    # What the order of the windows and the initial state are drawn by (data/windows.py, state.py).
    drawn_by = ["permutation"] + (["trunc_normal"] if config.run.start is None else [])
    return _versions(operators, ops.functions_of(operators, drawn_by))


def this_builds(recorded: Json) -> Json:
    """What this build has of a recorded arithmetic: the same names, this build's versions, without those it lacks."""
    return _versions(ops.OPERATORS.keys() & recorded["operators"], ops.FUNCTIONS.keys() & recorded["functions"])


def difference(recorded: Json, config: RunConfig, captured: StepPrograms | None = None) -> str | None:
    """Why this build does not compute what a genesis recorded, at most 200 characters, or None where it does."""
    ours, here = arithmetic(config, captured), this_builds(recorded)
    if recorded == ours:
        return None
    if recorded["version"] != ours["version"]:
        return f"computed with {recorded['version']}; this build has {ours['version']}"
    changed = [
        (name, version, here[table].get(name))
        for table in ("operators", "functions")
        for name, version in sorted(recorded[table].items())
        if here[table].get(name) != version
    ]
    if changed:
        name, was, has = changed[0]
        mine = f"no {name}" if has is None else f"{name} {has}"
        others = len(changed) - 1
        more = f" (and {others} more differ{'s' if others == 1 else ''})" if others else ""
        return f"computed with {name} {was}; this build has {mine}{more}"
    if recorded["digest"] != here["digest"]:
        return "computed with operators of these versions that were declared otherwise"
    apart = sorted({*ours["operators"], *ours["functions"]} ^ {*recorded["operators"], *recorded["functions"]})
    which = f"{apart[0]} and {len(apart) - 1} more are" if len(apart) > 1 else f"{apart[0]} is"
    return f"computed with the operators of another program: {which} not in both"


def _versions(operators: Iterable[str], functions: Iterable[str]) -> Json:
    operators, functions = sorted(operators), sorted(functions)
    return {
        "digest": ops.arithmetic_digest(operators, functions),
        "functions": {name: ops.FUNCTIONS[name].version for name in functions},
        "operators": {name: ops.OPERATORS[name].version for name in operators},
        "version": ops.ARITHMETIC,
    }
