"""What decides bits on the host calls no libm: only + - * /, square root and integer steps.

`math.pow`, `**`, `math.cos` and numpy's functions come from the machine's libm or vendor libraries, and their
last bit differs between machines. This reads the source of the modules that compute such scalars.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Modules whose binary64 results enter a record; a new one is added here.
HOST_MODULES = ["kernels/host.py"]
ALLOWED_IMPORTS = {"array", "functools", "struct", "sys", "bitwitness.kernels.errors"}
ALLOWED_MATH = {"sqrt", "factorial", "inf", "nan", "pi"}
BANNED_CALLS = {"pow", "divmod", "sum", "round"}  # sum() of floats is compensated since Python 3.12


def breaches(source: str, *, imports: set[str]) -> list[str]:
    """What the source uses that could differ between machines, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        what = None
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Pow | ast.Mod):
            # % is allowed on integers only; the sources use it with a literal integer on the right.
            right = node.right if isinstance(node, ast.BinOp) else node.value
            whole = isinstance(right, ast.Constant) and isinstance(right.value, int)
            if isinstance(node.op, ast.Pow) or not whole:
                what = "** or % on numbers"
        elif isinstance(node, ast.Import):
            bad = [a.name for a in node.names if a.name not in imports | {"math"}]
            what = f"import {bad}" if bad else None
        elif isinstance(node, ast.ImportFrom):
            module = node.module or "."
            if module == "math" or module not in imports:
                what = f"from {module} import"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "math":
            what = f"math.{node.attr}" if node.attr not in ALLOWED_MATH else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            what = node.func.id if node.func.id in BANNED_CALLS else None
        if what:
            found.append(f"{node.lineno}: {what}")
    return found


@pytest.mark.parametrize("module", HOST_MODULES)
def test_host_scalars_use_exact_steps_only(module: str) -> None:
    assert breaches((ROOT / module).read_text("utf-8"), imports=ALLOWED_IMPORTS) == []


@pytest.mark.parametrize(
    "bad",
    [
        "x = a ** 2",
        "x **= 0.5",
        "x = a % b",
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
    assert breaches(bad, imports=ALLOWED_IMPORTS)
