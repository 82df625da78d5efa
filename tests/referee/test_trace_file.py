"""The container: one file that safetensors reads, and a reader that accepts its own bytes and no others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from bitwitness.kernels import _native
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.tracing import trace, trace_file
from bitwitness.kernels.tracing.recorder import CommittedTensor, Recorder
from bitwitness.kernels.tracing.trace_file import SCRIPT_KEY, TraceFileError
from bitwitness.ledger import commitments

from . import files
from .builds import ENGINE, ROOT
from .conftest import Referee
from .test_hostile_files import joined, parts


def test_written_and_read_again(steps_file: Path) -> None:
    file = trace_file.read(steps_file)
    assert file.script == files.steps(24).script
    again = steps_file.with_name("again")
    trace_file.write(again, file)
    assert again.read_bytes() == steps_file.read_bytes()


def test_the_safetensors_library_reads_it(steps_file: Path) -> None:
    file = trace_file.read(steps_file)
    tensors = load_file(steps_file)
    assert tensors.keys() == file.tensors.keys()
    assert all(np.array_equal(tensors[name], file.tensors[name]) for name in tensors)
    with safetensors.safe_open(steps_file, "np") as opened:
        assert opened.metadata() == {SCRIPT_KEY: file.script}


def test_recording_does_not_depend_on_threads_or_on_having_been_recorded_before(steps_file: Path) -> None:
    assert files.steps(24, threads=3).script == trace_file.read(steps_file).script


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: (int.from_bytes(data[:8], "little") + 8).to_bytes(8, "little") + data[8:],
        lambda data: data[:8] + b" " + data[9:],
        lambda data: data.replace(b'"shape":[8,5]', b'"shape":[5,8]', 1),
        lambda data: data.replace(b'{"data_offsets":[0,', b'{"data_offsets":[4,', 1),
        lambda data: data.replace(b"bitwitness.trace/1", b"bitwitness.trace/2", 1),
        lambda data: data.replace(b"matmul_nt", b"matmul_nn", 1),
    ],
)
def test_other_bytes_are_refused(steps_file: Path, referee: Referee, change: object) -> None:
    data = change(steps_file.read_bytes())  # type: ignore[operator]
    path = steps_file.with_name("changed")
    path.write_bytes(data)
    with pytest.raises(KernelError):
        trace.run(trace_file.read(path), 1)
    assert referee(path).status == 2


def test_a_header_that_is_not_canonical_is_refused(steps_file: Path, referee: Referee) -> None:
    """Duplicate keys, keys out of order and blanks: each is another spelling of something that has one."""
    header, script, body = parts(steps_file.read_bytes())
    text = trace_file.canonical(script)
    path = steps_file.with_name("spelled")
    for spelling in (text.replace('"actions"', '"actions" ', 1), "{}" + text, '{"actions":[],' + text[1:]):
        path.write_bytes(joined(header, spelling, body))
        with pytest.raises(TraceFileError):
            trace_file.read(path)
        assert referee(path).status == 2


def test_digests_are_those_of_the_ledger() -> None:
    """Two implementations of the RFC 6962 tensor digest, C++ and Python, around every boundary."""
    for size in (1, 13, 16383, 16384, 16385, 5 * 16384, 100_001):
        array = files.normal("digest", size)
        assert trace.tensor_digest(array).hex() == commitments.tensor_digest(array)
    ints = np.arange(70000, dtype=np.int32)
    assert trace.tensor_digest(ints).hex() == commitments.tensor_digest(ints)
    for size in range(1, 40):  # SHA-256 around the ends of its blocks
        array = np.full(size, 0x01020304, np.int32)
        assert _native.chunk_hashes(array) == hashlib.sha256(b"\0" + array.tobytes()).digest()


def test_every_nan_is_hashed_as_one() -> None:
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    one = np.array([0x7FC00000] * 4, np.uint32).view(np.float32)
    assert _native.chunk_hashes(nans) == _native.chunk_hashes(one)
    assert nans.view(np.uint32)[1] == 0xFFC00000  # and is left as it was


def test_what_the_host_changes_between_runs_is_recorded(tmp_path: Path, referee: Referee) -> None:
    """Inputs, scalars and zeros that the host writes into memory that programs use."""
    x, y, z = files.normal("x", 50), files.normal("y", 50), np.zeros(50, np.float32)
    recorder = Recorder()
    program, arrays = files.program_of_case(("add", [x, y, z], {}))
    executor = recorder.executor(program, 2)
    executor.run(arrays)
    x[:] = z  # from an output into an input
    executor.run(arrays)
    z.fill(-1.0)  # lost at once: the program writes all of it
    y.fill(0.0)
    executor.run(arrays)
    z[3] = 5.0
    recorder.commit("weights/1", {"z": CommittedTensor(z, 0, (50,))}, "end")
    file = recorder.finish()
    found = trace.run(file, 1)
    assert found.slots["y"].tobytes() == z.tobytes()
    assert {json.dumps(slot.to_json()) for slot in file.slots} == {
        json.dumps({"dtype": "F32", "name": name, "shape": [50]}) for name in ("a", "b", "y")
    }
    trace_file.write(tmp_path / "f", file)
    verdict = referee(tmp_path / "f", "--trace")
    assert verdict.one("trace")["root"] == found.root
    assert verdict.one("commitment")["root"] == found.committed["end"]["root"]


def test_the_page_gives_the_command_that_the_tests_compile_with() -> None:
    page = (ROOT / "docs" / "formats" / "trace.md").read_text(encoding="utf-8")
    assert f"@kernels/referee/flags kernels/csrc/{{{','.join(ENGINE)}}}.cpp" in page
    assert "kernels/csrc/ops/*.cpp kernels/referee/*.cpp -o referee" in page
