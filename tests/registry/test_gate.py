"""The gate on an honest bundle, and on one with a single byte changed anywhere."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.gating.gate import verify_model
from bitwitness.registry.policy import Policy, load_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine

from . import project_fixture
from .conftest import Registered


def test_an_honest_model_is_verified(registered: Registered) -> None:
    checks = registered.verdict()
    assert exit_code(checks.values()) == 0
    assert {name for name, check in checks.items() if check.ok} == {
        "bundle", "checkpoint", "inclusion", "signatures", "release", "chain", "state", "data", "code", "evals",
        "audits", "status", "files", "config", "weights", "audit", "require-status", "completeness", "revocations",
    }  # fmt: skip
    assert checks["witnesses"] == Check("witnesses", None, checks["witnesses"].detail, "ASSURANCE", required=False)
    assert "self-asserted" in checks["witnesses"].detail
    assert {check.category for check in checks.values()} == {"CRYPTO", "POLICY", "ASSURANCE"}


def test_verify_model_answers_in_json_types(registered: Registered) -> None:
    for check in verify_model(registered.folder, registered.policy):
        assert set(check) == {"name", "ok", "detail", "category", "required"}


def test_the_gate_needs_neither_torch_nor_the_project(registered: Registered, tmp_path: Path) -> None:
    bundle, policy = tmp_path / "elsewhere", tmp_path / "trust.toml"
    registered.folder.rename(bundle)
    registered.policy.rename(policy)
    code = (
        "import sys, pathlib; from bitwitness.registry.gating.gate import verify_model;"
        f"checks = verify_model(pathlib.Path({str(bundle)!r}), pathlib.Path({str(policy)!r}));"
        "assert not any(c['ok'] is False or (c['ok'] is None and c['required']) for c in checks), checks;"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules and 'sqlite3' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""})


def _every_byte(path: Path, policy: Policy) -> None:
    """Change each byte of a file, one at a time; the folder must be found wrong every time."""
    data = bytearray(path.read_bytes())
    with path.open("r+b", buffering=0) as file:
        for position in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[position] ^ 1]), position)
            checks = examine(path.parent, policy).checks
            assert exit_code(checks) == 1, (position, bytes(data[max(0, position - 20) : position + 20]))
            assert all("\n" not in check.detail for check in checks)
            os.pwrite(file.fileno(), data[position : position + 1], position)
    assert exit_code(examine(path.parent, policy).checks) == 0


@pytest.mark.parametrize("name", ["provenance.json", "model.safetensors", "config.json"])
def test_every_byte_counts(tmp_path: Path, name: str) -> None:
    made = project_fixture.make_lean(tmp_path / "project")
    folder = register(made.project, "lean", "small").path
    policy = load_policy(made.policy)
    _every_byte(folder / name, policy.model_copy(update={"rules": type(policy.rules)()}))


def test_a_flipped_weight_names_its_tensor(registered: Registered) -> None:
    path = registered.folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x80
    path.write_bytes(data)
    assert "model.norm.weight has other values" in registered.refused("weights")
    assert "model.safetensors has other bytes" in registered.verdict()["files"].detail


def test_every_truncation_of_the_weights_is_refused(registered: Registered) -> None:
    path = registered.folder / "model.safetensors"
    data = path.read_bytes()
    for length in [*range(0, 64), *range(64, len(data), 37)]:
        path.write_bytes(data[:length])
        registered.refused("weights")


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*above, key)
        yield from _paths(item, (*above, key))


def test_every_part_of_the_bundle_is_needed(registered: Registered) -> None:
    """Removing any object key or list item is found; so is putting a 0 in its place."""
    policy, path = load_policy(registered.policy), registered.folder / "provenance.json"
    honest = jcs.parse(path.read_bytes())
    for place in _paths(honest):
        for replace in (False, True):
            changed = copy.deepcopy(honest)
            parent = changed
            for key in place[:-1]:
                parent = parent[key]
            if not replace:
                del parent[place[-1]]
            elif parent[place[-1]] != 0:
                parent[place[-1]] = 0
            else:
                continue
            path.write_bytes(jcs.encode(changed))
            assert exit_code(examine(registered.folder, policy).checks) == 1, (place, replace)
