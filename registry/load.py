"""Loads the weights that were verified: the tensors are views of the very memory in which they were checked."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from bitwitness.ledger.errors import BitwitnessError

from .checks import exit_code, reasons
from .folder import is_weights_file
from .gating.gate import Request, decide
from .verify import Verdict

if TYPE_CHECKING:
    import torch


class NotVerified(BitwitnessError):
    """A model that did not pass the gate. ``reasons`` has a line per check; exit 1 if something is wrong, else 2."""

    longest = 8000

    def __init__(self, path: Path, reasons: list[str], code: int) -> None:
        super().__init__(f"{path} is not verified: {'; '.join(reasons)}")
        self.path = path
        self.reasons = reasons
        self.exit_code = code


def load_verified(
    path: Path | str, policy: Path | str, *, state: Path | str | None = None, status: Path | str | None = None
) -> dict[str, torch.Tensor]:
    """Verify a model's folder against a policy file and return its tensors by name, in byte order of the names.

    The files are read once. Tensors share the memory that was checked, are writable, and belong to the caller.
    ``state`` is the gate's memory, ``status`` a newer status of the log (docs/gate.md).
    Raises NotVerified with every reason, or another BitwitnessError if policy or folder cannot be read.
    """
    return tensors_of(passed(Path(path), Path(policy), state, status))


def load_file(
    filename: Path | str,
    device: str | int = "cpu",
    *,
    policy: Path | str,
    state: Path | str | None = None,
    status: Path | str | None = None,
) -> dict[str, torch.Tensor]:
    """As `safetensors.torch.load_file`, of one weights file in a model's folder, the whole of which is verified first.

    Raises NotVerified, or another BitwitnessError.
    """
    filename = Path(filename)
    if not is_weights_file(filename.name):
        raise BitwitnessError(f"{filename} is not a weights file of a model's folder")
    verdict = passed(filename.parent, Path(policy), state, status)
    # The memory of each file was kept, so what is returned was checked; the file itself is not opened again.
    wanted = {name for name, file in verdict.places.items() if file == filename.name}
    if not wanted:
        raise BitwitnessError(f"{filename}: the release has no such weights file")
    tensors = tensors_of(verdict, wanted)
    return tensors if str(device) == "cpu" else {name: tensor.to(device) for name, tensor in tensors.items()}


def passed(path: Path, policy: Path, state: Path | str | None = None, status: Path | str | None = None) -> Verdict:
    """The verdict on a model that passed, with the memory in which its weights were checked. Raises NotVerified."""
    verdict = decide(
        Request(
            path,
            policy,
            state=None if state is None else Path(state),
            status=None if status is None else Path(status),
            keep=True,
        )
    )
    code = exit_code(verdict.checks)
    if code:
        raise NotVerified(path, reasons(verdict.checks), code)
    return verdict


def tensors_of(verdict: Verdict, wanted: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """Tensors over the memory of a verdict, by name, in byte order of the names."""
    import torch  # seconds to import; the gate itself does without

    dtypes = {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
        "I64": torch.int64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
        "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    }  # fmt: skip
    result = {}
    for name, tensor in sorted(verdict.tensors.items()):
        if wanted is not None and name not in wanted:
            continue
        raw = torch.frombuffer(tensor.data, dtype=torch.uint8)
        dtype = dtypes[tensor.entry.dtype]
        if raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()  # a header of odd length; elements must be aligned
        result[name] = raw.view(dtype).reshape(tensor.entry.shape)
    return result
