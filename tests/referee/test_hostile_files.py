"""Files that mean harm: the referee, compiled with address and undefined-behaviour sanitizers, refuses in one line.

Whatever the bytes are, it ends with status 0, 1 or 2, writes nothing it must not, and says no more than a line.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.tracing import trace, trace_file
from bitwitness.kernels.tracing.trace_file import SCRIPT_KEY, canonical

from . import files
from .builds import SANITIZED
from .conftest import Referee, Verdict

NUMBERS = (-1, 0, 1, 2, 3, 7, 8, 255, 256, 16384, 65537, 2**31 - 1, 2**31, 2**40, 2**52, 2**53 - 1)


@pytest.fixture(scope="module")
def small(folder: Path) -> bytes:
    path = folder / "small.safetensors"
    trace_file.write(path, files.steps(1))
    return path.read_bytes()


def parts(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Header without its script, script, tensor data."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    script = json.loads(header["__metadata__"].pop(SCRIPT_KEY))
    return header, script, data[8 + length :]


def joined(header: dict[str, Any], script: Any, data: bytes) -> bytes:
    text = script if isinstance(script, str) else canonical(script)
    whole = copy.deepcopy(header)
    whole["__metadata__"][SCRIPT_KEY] = text
    encoded = canonical(whole).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + data


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += [(value, key), *places(child)]
    return found


def mutate(value: Any, rng: random.Random) -> None:
    """Change one thing in a JSON value: a number, a name, or what is there at all."""
    container, key = rng.choice(places(value))
    child = container[key]
    if isinstance(child, int):
        container[key] = rng.choice([*NUMBERS, child + 1, child - 1, 2 * child])
    elif isinstance(child, str):
        others = [c[k] for c, k in places(value) if isinstance(c[k], str)]
        container[key] = rng.choice([*others, "", "x" * 201, "7fc00000", "ff800000"])
    elif rng.random() < 0.3:
        del container[key]
    elif isinstance(child, list) and child:
        rng.choice([child.reverse, child.pop, lambda: child.append(copy.deepcopy(child[0]))])()
    elif isinstance(child, dict) and child:
        child.pop(rng.choice(list(child)))


def mutants(data: bytes, count: int) -> Iterator[bytes]:
    rng = random.Random(20260101)
    header, script, body = parts(data)
    for number in range(count):
        kind = number % 4
        if kind == 0:  # a byte, mostly of the header
            changed = bytearray(data)
            at = rng.randrange(len(data) - len(body)) if rng.random() < 0.8 else rng.randrange(len(data))
            changed[at] ^= 1 << rng.randrange(8)
            yield bytes(changed)
        elif kind == 1:  # the script, still canonical
            other = copy.deepcopy(script)
            for _ in range(rng.choice((1, 1, 2))):
                mutate(other, rng)
            yield joined(header, other, body)
        elif kind == 2:  # attributes, shapes and offsets of calls: what reaches the operators
            other = copy.deepcopy(script)
            mutate(rng.choice(rng.choice(other["programs"])["calls"]), rng)
            yield joined(header, other, body)
        else:
            yield rng.choice([data[: rng.randrange(len(data))], data + b"\0" * rng.randrange(1, 9), body])


def judge(referee: Referee, folder: Path, number: int, data: bytes) -> Verdict:
    path = folder / f"mutant-{number}.safetensors"
    path.write_bytes(data)
    verdict = referee(path, "--threads", "2", "--memory", "1", build=SANITIZED, timeout=60)
    path.unlink()
    return verdict


def test_mutants_are_refused_or_run(small: bytes, folder: Path, referee: Referee) -> None:
    assert judge(referee, folder, 0, small).status == 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = [pool.submit(judge, referee, folder, n, data) for n, data in enumerate(mutants(small, 480))]
        verdicts = [future.result() for future in work]
    for number, verdict in enumerate(verdicts):
        assert verdict.status in (0, 1, 2), (number, verdict)
        lines = verdict.error.splitlines()
        assert len(lines) == (verdict.status == 2) and all(line.startswith("referee: ") for line in lines), number
    assert sum(v.status == 2 for v in verdicts) > 240


def test_a_changed_number_is_found_wrong(small: bytes, folder: Path, referee: Referee) -> None:
    """One bit of one initial weight: exit status 1, and both roots."""
    changed = bytearray(small)
    header, _, body = parts(small)
    changed[len(small) - len(body) + header["params/0"]["data_offsets"][0] + 40] ^= 1
    verdict = judge(referee, folder, 1, bytes(changed))
    assert verdict.status == 1
    assert verdict.facts["commitment"][0]["verdict"] == "WRONG" and verdict.facts["commitment"][0]["expected"]


HEADS = {"heads": 2**52, "head_width": 4, "sign": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda s: s["slots"].append({**s["slots"][0], "name": "x", "shape": [2**40]}),
            "it takes 4097 GiB of memory, more than the 1 allowed",
        ),
        (lambda s: s["slots"][0].update(shape=[2**40, 2**40]), "more than 2^40 elements"),
        (lambda s: s["slots"].append(s["slots"][0]), "slot params is declared twice"),
        (lambda s: s["programs"][0]["calls"][0].update(version=2), "embed of version 2 is not"),
        (lambda s: s["programs"][0]["calls"][0].update(op="system"), "no operator 'system'"),
        (lambda s: s["programs"][0]["calls"][0]["operands"][1].update(offset=2**40), "reaches beyond buffer params"),
        (lambda s: rope(s)["attributes"].update(heads=2**52, head_width=2**12), "rope: operand cos has shape"),
        (lambda s: s["actions"].append({"run": 99, "with": []}), "run = 99 is outside 0"),
        (lambda s: s["actions"].append({"shell": "rm"}), "an action"),
        (lambda s: s["actions"].insert(0, {"load": "ids", "tensor": "params/0"}), "another dtype or shape"),
        (lambda s: run_with(s, {"m": "v"}), "slot v is bound twice and written"),
        (lambda s: s.update(extra=1), "the script has a key 'extra' that means nothing here"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_it_says(small: bytes, folder: Path, referee: Referee, change: Any, says: str) -> None:
    header, script, body = parts(small)
    change(script)
    verdict = judge(referee, folder, 2, joined(header, script, body))
    assert verdict.status == 2 and says in verdict.error, verdict.error
    path = folder / "what.safetensors"
    path.write_bytes(joined(header, script, body))
    with pytest.raises(KernelError):  # the library refuses it as well, when it is read or when it is run
        trace.run(trace_file.read(path), 1)


def rope(script: Any) -> Any:
    return next(call for call in script["programs"][0]["calls"] if call["op"] == "rope")


def run_with(script: Any, other: dict[str, str]) -> None:
    """Bind the last run to other slots."""
    action = [action for action in script["actions"] if "run" in action][-1]
    action["with"] = [other.get(name, name) for name in action["with"]]


def test_an_index_outside_its_range_is_refused(small: bytes, folder: Path, referee: Referee) -> None:
    header, _, body = parts(small)
    changed = bytearray(small)
    at = len(small) - len(body) + header["ids/0"]["data_offsets"][0]
    changed[at : at + 4] = (1000).to_bytes(4, "little")
    verdict = judge(referee, folder, 3, bytes(changed))
    assert verdict.status == 2 and "ids[0] = 1000 is outside 0 … 36" in verdict.error


def test_options_are_checked(folder: Path, referee: Referee) -> None:
    for option in (["--threads", "0"], ["--memory", "x"], ["--call", "3"], ["--shell"]):
        verdict = referee(folder / "none", *option, build=SANITIZED)
        assert verdict.status == 2 and len(verdict.error.splitlines()) == 1
    assert "it cannot be opened" in referee(folder / "none", build=SANITIZED).error
