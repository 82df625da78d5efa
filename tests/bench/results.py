"""bench/results.json: the number of every key, its bound and whether it holds, and under what each part was measured.

Parts are measured one at a time, and each replaces only what is its own in the file.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bitwitness.kernels import _native

PATH = Path("bench/results.json")

AT_MOST: Mapping[str, float] = {
    "gemm_fp32_vs_torch": 1.00,
    "gemm_bfp_vs_torch": 0.70,
    "step_fp32_vs_eager": 0.90,
    "step_fp32_vs_compile": 1.00,
    "step_bfp_vs_eager": 0.70,
    "step_bfp_vs_compile": 0.75,
    "audit_overhead_fp32": 0.06,
    "audit_overhead_bfp": 0.09,
    "step_rss_vs_eager": 1.00,
    "replay_vs_train": 1.05,
    "audit_fixed_cost_s": 2.0,
    "replay_rss_vs_train": 1.05,
    "prove_p99_ms_1m": 1.0,
    "verify_all_100k_s": 15.0,
    "rss_1m_mb": 300.0,
    "bytes_per_step": 1900.0,
    "gate_fixed_cost_s": 0.6,
}
AT_LEAST: Mapping[str, float] = {
    "append_single_vs_sqlite": 0.8,
    "append_batch_per_s": 8000.0,
    "verify_vs_sha256sum": 1.6,
}


def bound(key: str, value: float) -> dict[str, Any] | None:
    """What a key is held to, and whether it holds; None for one that is reported only."""
    if key in AT_MOST:
        return {"at_most": AT_MOST[key], "pass": value <= AT_MOST[key]}
    if key in AT_LEAST:
        return {"at_least": AT_LEAST[key], "pass": value >= AT_LEAST[key]}
    return None


def merge(known: Mapping[str, Any], part: str, keys: Mapping[str, float], details: Any) -> dict[str, Any]:
    """The file with one part measured anew: keys at the top, `bounds` and `parts` beside them."""
    found = {key: value for key, value in known.items() if key not in ("bounds", "parts")}
    before = known.get("parts", {}).get(part, {}).get("keys", [])
    found = {key: value for key, value in found.items() if key not in before} | dict(keys)
    bounds = {key: limit for key, value in found.items() if _is_number(value) and (limit := bound(key, value))}
    measured = {"keys": sorted(keys), "details": details, **circumstances()}
    return {**found, "bounds": bounds, "parts": {**known.get("parts", {}), part: measured}}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def missed(results: Mapping[str, Any], keys: Mapping[str, float]) -> list[str]:
    """A line for each of these keys that misses its bound."""
    lines = []
    for key in keys:
        limit = results["bounds"].get(key)
        if limit is not None and not limit["pass"]:
            side = "at most" if "at_most" in limit else "at least"
            lines.append(f"{key} is {results[key]}; {side} {limit.get('at_most', limit.get('at_least'))} is promised")
    return lines


def circumstances() -> dict[str, Any]:
    """The machine, how busy it was, and what was measured."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": _git("rev-parse", "HEAD") + ("+changes" if changed else ""),
        "load": round(os.getloadavg()[0], 2),
        "machine": {
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "instruction_set": _native.isa(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def read() -> dict[str, Any]:
    """The file, or nothing where there is none."""
    if not PATH.exists():
        return {}
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def write(results: Mapping[str, Any]) -> None:
    """Write the file anew."""
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
