"""What `make install` leaves in the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_nothing_beside_the_checkout_is_imported(tmp_path: Path) -> None:
    """Else a file called like an optional module of some dependency would be executed, by whoever put it there."""
    script = "import sys, bitwitness.registry; print(*sys.path[1:], sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = {Path(line).resolve() for line in done.stdout.splitlines()}
    assert found and not found & {ROOT, *ROOT.parents}
