"""What decides bits on the host calls no libm: only + - * /, square root and integer steps.

`math.pow`, `**`, `math.cos` and numpy's functions come from the machine's libm or vendor libraries, and their
last bit differs between machines. This reads the source of the modules that compute such scalars.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Modules whose binary64 results enter a record, and what each may import (None: anything but the banned).
HOST_MODULES: dict[str, set[str] | None] = {
    "kernels/host.py": {"array", "collections.abc", "math", "struct", "bitwitness.kernels.errors"},
    "trainer/schedule.py": None,
    "trainer/step.py": None,
}
BANNED_IMPORTS = {"cmath", "numpy", "random", "statistics", "scipy"}
ALLOWED_MATH = {"sqrt", "factorial", "isfinite", "inf", "nan", "pi"}
BANNED_CALLS = {"pow", "sum", "round"}  # sum() of floats is compensated since Python 3.12


def breaches(source: str, imports: set[str] | None) -> list[str]:
    """What the source uses that could differ between machines, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Pow):
            found.append(f"{node.lineno}: **")
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
            if node.module == "math":
                found.append(f"{node.lineno}: from math import")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "math":
            if node.attr not in ALLOWED_MATH:
                found.append(f"{node.lineno}: math.{node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            found.append(f"{node.lineno}: {node.func.id}()")
        for name in names:
            if name.split(".")[0] in BANNED_IMPORTS or (imports is not None and name not in imports):
                found.append(f"{node.lineno}: import {name}")  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("module", HOST_MODULES)
def test_host_scalars_use_exact_steps_only(module: str) -> None:
    assert breaches((ROOT / module).read_text("utf-8"), HOST_MODULES[module]) == []


@pytest.mark.parametrize(
    "bad",
    [
        "x = a ** 2",
        "x **= 0.5",
        "import numpy",
        "import cmath",
        "from math import cos",
        "import math\nx = math.cos(1)",
        "import math\nx = math.pow(1, 2)",
        "x = pow(2.0, 0.5)",
        "x = sum(values)",
    ],
)
def test_the_lint_finds(bad: str) -> None:
    assert breaches(bad, None)
