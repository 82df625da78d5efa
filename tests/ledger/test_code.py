"""The code commitment: what it covers, and that it changes with the code."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bitwitness.ledger import _embed_code, code, commitments
from bitwitness.ledger.code import CodeError

ROOT = Path(__file__).resolve().parents[2]


def test_the_manifest_is_written_by_a_plain_interpreter(tmp_path: Path) -> None:
    output = tmp_path / "_code.json"
    script = Path(_embed_code.__file__)
    subprocess.run([sys.executable, "-I", str(script), str(ROOT), str(output)], check=True)
    rows = json.loads(output.read_text())
    paths = [row["path"] for row in rows]
    assert paths == sorted(paths, key=str.encode)
    assert {"CMakeLists.txt", "pyproject.toml", "kernels/csrc/CMakeLists.txt", "ledger/merkle.py"} <= set(paths)
    assert {"trainer/__init__.py", "registry/__init__.py"} <= set(paths)
    assert not [path for path in paths if "__pycache__" in path or path.endswith((".so", ".pyc", ".json"))]
    assert code.read_manifest(output)["ledger/merkle.py"] == _embed_code.sha256(ROOT / "ledger" / "merkle.py")


def tree(folder: Path) -> Path:
    for path, text in {
        "pyproject.toml": "x",
        "CMakeLists.txt": "x",
        "README.md": "not code",
        "kernels/a.cpp": "1",
        "kernels/csrc/CMakeLists.txt": "1",
        "kernels/notes.txt": "not code",
        "ledger/b.py": "2",
        "ledger/__pycache__/b.pyc": "cache",
        "ledger/__pycache__/c.py": "cache",
        "ledger/.hidden.py": "hidden",
        "trainer/sub/c.py": "3",
        "registry/page.html": "4",
        "tests/t.py": "not code",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_which_files_count(tmp_path: Path) -> None:
    assert [path for path, _ in _embed_code.source_files(tree(tmp_path))] == [
        "CMakeLists.txt",
        "kernels/a.cpp",
        "kernels/csrc/CMakeLists.txt",
        "ledger/b.py",
        "pyproject.toml",
        "registry/page.html",
        "trainer/sub/c.py",
    ]


def test_commitment_is_its_definition_and_sees_every_file() -> None:
    files = {"b.py": "ab" * 32, "a/z.py": "cd" * 32, "a.py": "ef" * 32}
    leaves = [commitments.file_leaf(path, files[path]) for path in ("a.py", "a/z.py", "b.py")]
    assert code.commit(files) == commitments.tree("code/1", leaves)
    for path in files:
        assert code.commit({**files, path: "00" * 32}) != code.commit(files)
        assert code.commit({key: value for key, value in files.items() if key != path}) != code.commit(files)


def test_python_counts_as_it_is_on_disk_and_the_rest_as_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited or new module changes the commitment at once; an edited C++ file only when it is compiled."""
    root = tree(tmp_path)
    manifest = tmp_path / "_code.json"
    _embed_code.main(str(root), str(manifest))
    monkeypatch.setattr(code, "_find_manifest", lambda: manifest)
    monkeypatch.setattr(code, "__file__", str(root / "ledger" / "code.py"))
    built = code.code_files()
    assert built == code.read_manifest(manifest)
    (root / "kernels/a.cpp").write_text("edited")
    assert code.code_files() == built
    (root / "ledger/b.py").write_text("edited")
    assert code.code_files()["ledger/b.py"] == _embed_code.sha256(root / "ledger/b.py") != built["ledger/b.py"]
    (root / "trainer/new.py").write_text("new")
    assert "trainer/new.py" in code.code_files()
    (root / "trainer/sub/c.py").unlink()
    assert "trainer/sub/c.py" not in code.code_files()


def test_this_installation() -> None:
    commitment = code.code_commitment()
    assert commitment.type == "code/1" and commitment.size == len(code.code_files()) > 20
    assert code.code_commitment() is commitment
    files = code.code_files()
    assert files["ledger/code.py"] == _embed_code.sha256(ROOT / "ledger" / "code.py")
    assert any(path.endswith(".cpp") for path in files)


def test_a_missing_or_damaged_manifest_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "{}", '[{"path":"x"}]', "[1]"):
        file = tmp_path / "_code.json"
        file.write_text(text)
        if text == "{}":
            continue
        with pytest.raises(CodeError, match="install"):
            code.read_manifest(file)
    package = importlib.import_module("bitwitness")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    with pytest.raises(CodeError, match="missing"):
        code._find_manifest()
