"""Every public vector is read by a test: one that nobody reads is a promise that nobody keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .conftest import ROOT

READERS = (
    "tests/kernels/test_philox_reference.py::test_known_answers",
    "tests/ledger/test_checkpoint.py::test_public_cases",
    "tests/ledger/test_checkpoint.py::test_public_signed_checkpoints",
    "tests/ledger/test_envelope.py::test_pae_of_the_public_vector",
    "tests/ledger/test_jcs.py::test_public_vectors",
    "tests/ledger/test_keys.py::test_wycheproof",
    "tests/ledger/test_merkle.py::test_public_consistency_vectors",
    "tests/ledger/test_merkle.py::test_public_inclusion_vectors",
    "tests/ledger/test_merkle.py::test_public_roots",
    "tests/ledger/test_note.py::test_public_cases",
    "tests/ledger/test_note.py::test_public_malformed_notes_and_keys",
    "tests/ledger/test_safetensors_header.py::test_public_vectors",
    "tests/ledger/test_tiles.py::test_public_paths",
    "tests/ledger/test_tlog_proof.py::test_public_cases",
    "tests/ledger/test_witness.py::test_public_flow",
    "tests/ledger/test_witness_policy.py::test_public_cases",
    "tests/registry/test_neighbours.py::test_the_projects_published_vector_is_well_formed",
)
# What tells of the vectors, and is none.
ABOUT = {"SOURCES.md", "random123/LICENSE"}

# Runs these tests and writes which files they opened: the last line of what it prints.
RUN = """
import json, os, sys
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
import pytest
status = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
print(json.dumps({"status": int(status), "opened": sorted(opened)}))
"""


def test_every_vector_is_read_by_a_test(vectors: Path) -> None:
    environment = {**os.environ, "BITWITNESS_VECTORS": str(vectors)}
    command = [sys.executable, "-c", RUN, *READERS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["status"] == 0, done.stdout
    files = {path.relative_to(vectors).as_posix() for path in vectors.rglob("*") if path.is_file()}
    opened = {Path(path).resolve() for path in said["opened"]}
    unread = [name for name in sorted(files - ABOUT) if (vectors / name).resolve() not in opened]
    assert files > ABOUT and unread == []
