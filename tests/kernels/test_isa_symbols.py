"""Code compiled for one instruction set must not leak into another.

An inline function of the C++ library, compiled with AVX2 in one object file and without in another, is one weak
symbol: the linker keeps either copy, and a CPU without AVX2 may meet the wrong one. So operators have none.
"""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
OBJECTS = sorted(ROOT.glob("build/*/kernels/csrc/CMakeFiles/operators_*.dir/ops/*.o"))


@pytest.mark.skipif(not OBJECTS, reason="no object files: installed from a wheel")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm (binutils) is not installed")
def test_operators_have_no_weak_symbols():
    listing = subprocess.run(["nm", "-C", *OBJECTS], capture_output=True, text=True, check=True).stdout
    weak = [line for line in listing.splitlines() if " W " in line or " V " in line or " u " in line]
    assert "T bitwitness::" in listing and weak == []
