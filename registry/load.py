"""Loads the weights that were verified: the tensors are views of the very memory in which they were checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitwitness.ledger.errors import BitwitnessError

from .checks import exit_code, reasons
from .policy import load_policy
from .verify import examine

if TYPE_CHECKING:
    import torch


class NotVerified(BitwitnessError):
    """A model that did not pass the gate. ``reasons`` has a line per check; exit 1 if something is wrong, else 2."""

    def __init__(self, path: Path, reasons: list[str], code: int) -> None:
        super().__init__(f"{path} is not verified: {'; '.join(reasons)}")
        self.path = path
        self.reasons = reasons
        self.exit_code = code


def load_verified(path: Path | str, policy: Path | str) -> dict[str, torch.Tensor]:
    """Verify a model's folder against a policy file and return its tensors by name, in byte order of the names.

    The files are read once. Tensors share the memory that was checked, are writable, and belong to the caller.
    Raises NotVerified with every reason, or another BitwitnessError if policy or folder cannot be read.
    """
    import torch  # seconds to import; the gate itself does without

    verdict = examine(Path(path), load_policy(Path(policy)), keep=True)
    code = exit_code(verdict.checks)
    if code:
        raise NotVerified(Path(path), reasons(verdict.checks), code)
    dtypes = {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
        "I64": torch.int64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
        "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    }  # fmt: skip
    result = {}
    for name, tensor in sorted(verdict.tensors.items()):
        raw = torch.frombuffer(tensor.data, dtype=torch.uint8)
        dtype = dtypes[tensor.entry.dtype]
        if raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()  # a header of odd length; elements must be aligned
        result[name] = raw.view(dtype).reshape(tensor.entry.shape)
    return result
