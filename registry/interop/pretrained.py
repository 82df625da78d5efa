"""`from_pretrained`: a `transformers` model of the very bytes that were verified (extra `hf`).

Nothing is read a second time and nothing from the folder decides what code runs: the class is always
`LlamaForCausalLM`, its configuration is what follows from the signed genesis, its weights are the memory that the gate
hashed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitwitness.ledger.errors import BitwitnessError

from ..description import is_own
from ..load import passed, tensors_of
from ..model_config import expected_config
from . import tokenizer_files
from .companions import trained_on


class PackageMissing(BitwitnessError):
    """The package `transformers` is not installed."""


def from_pretrained(path: Path | str, policy: Path | str) -> Any:
    """Verify a model's folder against a policy file and return it as a `transformers.LlamaForCausalLM`, in eval mode.

    The dtype is the release's. Raises PackageMissing, NotVerified, or another BitwitnessError.
    """
    try:
        import transformers
    except ImportError:
        raise PackageMissing("from_pretrained needs the package transformers; pip install 'bitwitness[hf]'") from None
    verdict = passed(Path(path), Path(policy))
    if verdict.traced is None or not verdict.tensors:
        raise BitwitnessError(f"{path}: the gate kept no weights")
    traced = verdict.traced.lineage
    if is_own(traced.genesis.predicate):
        raise BitwitnessError(
            f"{path}: transformers does not know a model of the trainer's own; make its module and give it the tensors "
            "of load_verified (nn.load_parameters)"
        )
    said = expected_config(traced.genesis.predicate["config"], traced.release.predicate["dtype"])
    tensors = tensors_of(verdict)
    dtype = next(iter(tensors.values())).dtype
    end = tokenizer_files.END_NUMBER if trained_on(traced).predicate["tokenizer"]["name"] == "bytes-1" else None
    config = transformers.LlamaConfig(**said, bos_token_id=None, eos_token_id=end)
    # Without a name nothing is looked for, on disk or on a hub.
    model = transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=tensors, dtype=dtype)
    return model.eval()
