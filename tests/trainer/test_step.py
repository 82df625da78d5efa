"""One step: the same bits however it is cut, and the gradient that calculus gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bitwitness.ledger.project import Project
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.data import Dataset, WindowStream
from bitwitness.trainer.state import State, initial_state, load_state, save_state
from bitwitness.trainer.step import NotFinite, Workspace, folded_gradient, step

from .conftest import small_config, small_table


def stream_of(project: Project, window: int = 24, seed: int = 7) -> WindowStream:
    return WindowStream(Dataset.open(project.data_dir, "text"), window, seed)


PRECISIONS = ["fp32", "bfp"]


def digests(project: Project, precision: str, threads: int, windows_at_once: int, steps: int = 3) -> list[str]:
    config = small_config(precision=precision)
    workspace = Workspace(config, threads, windows_at_once)
    state = initial_state(config, workspace.layout)
    stream = stream_of(project)
    found = []
    for _ in range(steps):
        step(state, stream, workspace)
        found.append(state.commit().digest)
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_threads_and_windows_at_once_are_not_in_the_bits(project: Project, precision: str) -> None:
    expected = digests(project, precision, threads=1, windows_at_once=1)
    for threads in (1, 2, 3):
        for windows_at_once in (1, 2):
            assert digests(project, precision, threads, windows_at_once) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
def test_shards_folded_apart_meet_the_whole(project: Project, precision: str) -> None:
    """Two machines own shards {0, 1} and {2}; they exchange the nodes of the fold and meet the one machine."""
    config = small_config(precision=precision)
    workspace = Workspace(config, 2)
    state = initial_state(config, workspace.layout)
    stream = stream_of(project)
    whole, loss, tokens = folded_gradient(state, stream, workspace)
    gradients = []
    for shard in range(3):
        one = Workspace(config, 1, 1)
        gradients.append(one.shard_gradient(one.weights(state.params), stream, shard * 2))
    left = workspace.fold(gradients[0][0].copy(), gradients[1][0].copy())
    apart = workspace.fold(left, gradients[2][0].copy())
    assert np.array_equal(whole.view(np.int32), apart.view(np.int32))
    assert sum(count for _, _, count in gradients) == tokens
    assert (0.0 + gradients[0][1]) + gradients[1][1] + gradients[2][1] == loss


# Largest error over the largest element: binary32 rounding, and that of 12-bit blocks through two layers.
ERRORS = {"fp32": 2e-5, "bfp": 2e-3}


def as_torch(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tied", [True, False])
def test_gradient_is_that_of_pytorch(project: Project, tied: bool, precision: str) -> None:
    """Against autograd on the same model in float64: the formulas are right, to rounding."""
    from tests.bench.eager import Decoder

    table, error = small_table(precision=precision), ERRORS[precision]
    table["model"]["tied"] = tied
    config = parse_config(table, where="test")
    workspace = Workspace(config, 2)
    state = initial_state(config, workspace.layout)
    stream = stream_of(project)
    gradient, loss, _ = workspace.shard_gradient(workspace.weights(state.params), stream, 0)

    baseline = Decoder(config.model, config.data.window).double()
    ours = as_torch(workspace.layout.tensors(state.params))
    names = {}
    with torch.no_grad():
        for layer, block in enumerate(baseline.blocks):
            prefix = f"model.layers.{layer}."
            qkv = [ours[f"{prefix}self_attn.{p}_proj.weight"] for p in "qkv"]
            block.attention.qkv.weight.copy_(torch.cat(qkv))
            block.attention.o.weight.copy_(ours[prefix + "self_attn.o_proj.weight"])
            gate_up = [ours[f"{prefix}mlp.{p}_proj.weight"] for p in ("gate", "up")]
            block.gate_up.weight.copy_(torch.cat(gate_up))
            block.down.weight.copy_(ours[prefix + "mlp.down_proj.weight"])
            names[f"{prefix}self_attn.o_proj.weight"] = block.attention.o.weight
            names[f"{prefix}mlp.down_proj.weight"] = block.down.weight
            names[f"{prefix}input_layernorm.weight"] = block.norm1.weight
            names[f"{prefix}post_attention_layernorm.weight"] = block.norm2.weight
        baseline.embed.weight.copy_(ours["model.embed_tokens.weight"])
        if not tied:
            baseline.head.weight.copy_(ours["lm_head.weight"])
            names["lm_head.weight"] = baseline.head.weight
    names["model.embed_tokens.weight"] = baseline.embed.weight
    names["model.norm.weight"] = baseline.norm.weight
    rows = stream.samples(0, 2)
    ids = torch.from_numpy(rows.inputs).long().view(2, -1)
    targets = torch.from_numpy(rows.targets).long()
    expected = torch.nn.functional.cross_entropy(baseline(ids).flatten(0, 1), targets, reduction="sum")
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=error)
    found = as_torch(workspace.layout.tensors(gradient))
    for name, parameter in names.items():
        assert parameter.grad is not None
        scale = parameter.grad.abs().max().item()
        assert (found[name].double() - parameter.grad).abs().max().item() <= error * scale, name
    for layer, block in enumerate(baseline.blocks):
        prefix = f"model.layers.{layer}."
        qkv = torch.cat([found[f"{prefix}self_attn.{p}_proj.weight"] for p in "qkv"])
        gate_up = torch.cat([found[f"{prefix}mlp.{p}_proj.weight"] for p in ("gate", "up")])
        for mine, theirs in ((qkv, block.attention.qkv.weight), (gate_up, block.gate_up.weight)):
            assert theirs.grad is not None
            assert (mine.double() - theirs.grad).abs().max().item() <= error * theirs.grad.abs().max().item()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_taps_do_not_change_the_bits(project: Project, precision: str) -> None:
    config = small_config(precision=precision)
    seen: list[str] = []
    plain, tapped = Workspace(config, 2), Workspace(config, 2, taps=True)
    a, b = initial_state(config, plain.layout), initial_state(config, tapped.layout)
    stream = stream_of(project)
    step(a, stream, plain)
    step(b, stream, tapped, lambda taps: seen.extend(name for name, _ in taps))
    assert a.commit() == b.commit()
    assert seen[:3] == ["shard/0/block.0.input", "shard/0/block.1.input", "shard/0/block.2.input"]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_not_finite_leaves_the_state_untouched(project: Project, precision: str) -> None:
    config = small_config(precision=precision)
    workspace = Workspace(config, 1)
    state = initial_state(config, workspace.layout)
    state.params[5] = float("inf")
    before = state.commit()
    with pytest.raises(NotFinite, match="step 1"):
        step(state, stream_of(project), workspace)
    assert state.commit() == before


def test_stored_state_comes_back_bit_for_bit(project: Project, tmp_path: Path) -> None:
    config = small_config()
    workspace = Workspace(config, 1)
    state = initial_state(config, workspace.layout)
    step(state, stream_of(project), workspace)
    folder = tmp_path / "states" / "step-00000001"
    save_state(state, folder)
    again: State = load_state(folder, workspace.layout, state.control)
    assert again.commit() == state.commit()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["step-00000001"]
