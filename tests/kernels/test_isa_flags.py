"""Configuring refuses inherited compiler flags that would change floating-point results."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("c++") is None, reason="needs cmake and a compiler")
@pytest.mark.parametrize(
    ("variable", "flag"),
    [
        ("CXXFLAGS", "-ffast-math"),
        ("LDFLAGS", "-Ofast"),
        ("CXXFLAGS", "-O2 -ffp-contract=fast"),
        ("CFLAGS", "-mdaz-ftz"),
    ],
)
def test_refused(tmp_path, variable, flag):
    run = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path],
        env={**os.environ, variable: flag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert f"'{flag}' changes floating-point results" in " ".join(run.stderr.split())
