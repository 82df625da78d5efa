"""The wheel is whole: built, unpacked elsewhere, and run outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder)]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(folder / "site")
        referee = archive.getinfo("bitwitness/kernels/bin/referee")
    assert referee.external_attr >> 16 & 0o111, "an installer makes it executable"
    assert not [name for name in names if name.endswith((".cpp", ".h", "CMakeLists.txt"))], "sources stay out"
    return folder / "site"


def run(site: Path, *arguments: str, cwd: Path) -> str:
    # -S leaves out the editable install of this checkout, which would come first.
    path = f"{site}{os.pathsep}{sysconfig.get_path('purelib')}"
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kernels_of_the_wheel_meet_the_golden_digests(site: Path, tmp_path: Path) -> None:
    where = run(site, "-c", "import bitwitness.kernels._native as n; print(n.__file__)", cwd=tmp_path)
    assert where.startswith(str(site))
    run(site, "-m", "bitwitness.kernels", cwd=tmp_path)


def test_a_project_made_by_the_wheel_verifies(site: Path, tmp_path: Path) -> None:
    main = "import sys; from bitwitness.ledger.cli import main; sys.exit(main())"
    run(site, "-c", main, "init", "project", cwd=tmp_path)
    out = run(site, "-c", main, "--project", "project", "verify", "project/ledger.db", cwd=tmp_path)
    assert out.strip().endswith("verified")


def test_the_code_commitment_of_the_wheel_is_that_of_the_checkout(site: Path, tmp_path: Path) -> None:
    code = "from bitwitness.ledger.code import code_commitment; print(code_commitment().root)"
    here = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run(site, "-c", code, cwd=tmp_path) == here.stdout
