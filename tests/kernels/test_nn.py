"""bitwitness.kernels.nn: modules like torch's, with the gradients of calculus and bits that no thread count changes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from bitwitness.kernels import nn
from bitwitness.kernels.errors import KernelError, ShapeError
from bitwitness.kernels.philox import derive_key, trunc_normal

WINDOW, WIDTH = 12, 24


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(ours: torch.Tensor, theirs: torch.Tensor, units: float) -> None:
    """At most `units` roundings (2^-24) of the largest element apart, per element: theirs is binary64."""
    error = (ours.double() - theirs).abs().max().item()
    assert error <= units * 2.0**-24 * theirs.abs().max().item(), error


# Each sum of n terms rounds at most n times; the widths and row counts here stay below 40, and a module has few sums.
UNITS = 120.0


def twin(ours: torch.nn.Module, theirs: torch.nn.Module) -> torch.nn.Module:
    theirs.load_state_dict(ours.state_dict())
    return theirs.double()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nn.Linear(WIDTH, 10), torch.nn.Linear(WIDTH, 10)),
        (nn.Linear(WIDTH, 10, bias=False), torch.nn.Linear(WIDTH, 10, bias=False)),
        (nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)),
        (nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)),
        (nn.LayerNorm(WIDTH, bias=False), torch.nn.LayerNorm(WIDTH, bias=False)),
        (nn.GELU(), torch.nn.GELU()),
        (nn.GELU("tanh"), torch.nn.GELU("tanh")),
        (nn.SiLU(), torch.nn.SiLU()),
    ],
    ids=lambda module: repr(module),
)
def test_values_and_gradients_are_torchs(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    twin(ours, theirs)
    x, dy = values(3, WINDOW, WIDTH, seed=1) * 2, values(3, WINDOW, WIDTH, seed=2)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = ours(a), theirs(b)
    y.backward(dy[..., : y.shape[-1]].contiguous())
    expected.backward(dy[..., : y.shape[-1]].double())
    close(y, expected, UNITS)
    close(a.grad, b.grad, UNITS)
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        close(p.grad, q.grad, UNITS), name


def test_embedding() -> None:
    ours = nn.Embedding(9, WIDTH)
    theirs = twin(ours, torch.nn.Embedding(9, WIDTH))
    ids, dy = torch.tensor([[0, 3, 3, 8], [3, 0, 1, 3]]), values(2, 4, WIDTH)
    for dtype in (torch.int32, torch.int64):
        assert torch.equal(ours(ids.to(dtype)).double(), theirs(ids))
    ours(ids).backward(dy)
    theirs(ids).backward(dy.double())
    close(ours.weight.grad, theirs.weight.grad, UNITS)


def test_swiglu() -> None:
    ours = nn.SwiGLU(WIDTH, 20, bias=True)
    x = values(2, WINDOW, WIDTH)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    gate, up, down = (twin(m, torch.nn.Linear(m.in_features, m.out_features)) for m in ours.children())
    expected = down(F.silu(gate(b)) * up(b))
    ours(a).backward(x)
    expected.backward(x.double())
    close(ours(x), expected, UNITS)
    close(a.grad, b.grad, UNITS)
    close(ours.up_proj.weight.grad, up.weight.grad, UNITS)


def rotated(x: torch.Tensor, theta: float) -> torch.Tensor:
    """x [B, H, T, d]."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]), theta ** (-torch.arange(half) / half)).double()
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


@pytest.mark.parametrize("rotary", [None, nn.RotaryEmbedding(6, theta=100.0)])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention(rotary: nn.RotaryEmbedding | None, kv_heads: int) -> None:
    ours = nn.CausalSelfAttention(WIDTH, 4, kv_heads, bias=True, rotary=rotary, std=0.3)
    x = values(2, WINDOW, WIDTH)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    q, k, v, o = (
        twin(m, torch.nn.Linear(m.in_features, m.out_features)) for m in ours.children() if isinstance(m, nn.Linear)
    )
    heads = [m(b).view(2, WINDOW, -1, 6).transpose(1, 2) for m in (q, k, v)]
    if rotary is not None:
        heads[:2] = [rotated(t, 100.0) for t in heads[:2]]
    mixed = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    expected = o(mixed.transpose(1, 2).reshape(2, WINDOW, -1))
    ours(a).backward(x)
    expected.backward(x.double())
    close(ours(x), expected, UNITS)
    close(a.grad, b.grad, 4 * UNITS)
    close(ours.k_proj.weight.grad, k.weight.grad, 4 * UNITS)
    close(ours.q_proj.bias.grad, q.bias.grad, 4 * UNITS)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy(reduction: str) -> None:
    logits, targets = values(2, WINDOW, 17), torch.arange(2 * WINDOW).view(2, WINDOW) % 17
    targets[0, 3] = -100
    a, b = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss = nn.CrossEntropyLoss(reduction=reduction)(a, targets)
    expected = torch.nn.CrossEntropyLoss(reduction=reduction)(b.view(-1, 17), targets.view(-1))
    (loss * 3.0).backward()
    (expected * 3.0).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=2.0**-22)
    close(a.grad, b.grad, UNITS)


def test_dropout_follows_sample_and_place() -> None:
    model = nn.named(torch.nn.Sequential(torch.nn.Identity(), nn.Dropout(0.25), nn.Dropout(0.25)))
    x = torch.ones(2, WINDOW, 40, requires_grad=True)
    with nn.tokens(nn.samples(2**33 + 6, 2, WINDOW, seed=4)):
        y = model(x)
        y.backward(torch.ones_like(y))
        assert torch.equal(x.grad, y) and y.unique().tolist() == [0.0, pytest.approx(16 / 9)]
        assert not torch.equal(model[1](x), model[2](x))  # each module has a mask of its own
    with nn.tokens(nn.samples(2**33 + 7, 1, WINDOW, seed=4)):
        assert torch.equal(model(x[1:]), y[1:])  # computed alone, the second sample falls alike
    with nn.tokens(nn.samples(7, 1, WINDOW, seed=4)):
        assert not torch.equal(model(x[1:]), y[1:])
    assert torch.equal(model.eval()(x), x)
    with pytest.raises(KernelError, match="needs to know its samples"):
        model.train()(x)


def test_documents_are_not_seen_across() -> None:
    """With `start` in the second half, that half is what it would be alone."""
    attention = nn.CausalSelfAttention(WIDTH, 4)
    x, half = values(1, WINDOW, WIDTH), WINDOW // 2
    row = torch.arange(WINDOW, dtype=torch.int32)
    with nn.tokens(nn.Tokens(WINDOW, row % half, row // half * half)):
        apart = attention(x)
    assert torch.equal(apart[:, :half], attention(x[:, :half].contiguous()))
    close(apart[:, half:], attention(x[:, half:].contiguous()).double(), 4.0)


def test_bits_do_not_depend_on_threads_or_on_windows_at_once() -> None:
    model = torch.nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.CausalSelfAttention(WIDTH, 2)
    )
    x, found = values(4, WINDOW, WIDTH), []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            model.zero_grad()
            model(x).backward(x)
            found.append([model(x).clone(), *(p.grad.clone() for p in model.parameters())])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert all(torch.equal(model(x[i : i + 1]), found[0][0][i : i + 1]) for i in range(4))


def test_initialise_draws_by_name() -> None:
    model = torch.nn.ModuleDict({"a": nn.Linear(5, 4, std=0.5), "b": nn.LayerNorm(4)})
    nn.initialise(model, 9)
    expected = torch.empty(20)
    trunc_normal(expected, derive_key(9, "init", "a.weight"), std=0.5, bound=3.0)
    assert torch.equal(model["a"].weight.view(-1), expected)
    assert model["b"].weight.eq(1).all() and model["b"].bias.eq(0).all() and model["a"].bias.eq(0).all()
    with pytest.raises(KernelError, match=r"0.weight of Linear does not say how it begins"):
        nn.initialise(torch.nn.Sequential(torch.nn.Linear(3, 3)), 1)


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(ShapeError, match="a module of width 5 got"):
        nn.Linear(5, 4)(values(2, 3, 6))
    with pytest.raises(ShapeError, match="must divide"):
        nn.CausalSelfAttention(WIDTH, 5)
    with pytest.raises(KernelError, match="approximate"):
        nn.GELU("erf")
    with nn.tokens(nn.samples(0, 2, WINDOW)), pytest.raises(ShapeError, match="where the call has 24 tokens"):
        nn.RMSNorm(WIDTH)(values(1, WINDOW, WIDTH))
    assert math.isfinite(nn.PositionEmbedding(WINDOW, WIDTH)(values(2, WINDOW, WIDTH)).sum().item())


def test_arguments_of_torchs_modules_are_taken_where_they_say_what_is_so() -> None:
    assert nn.LayerNorm(WIDTH, 1e-5, True, False).bias is None
    for make in (
        lambda module: module.Linear(WIDTH, 3, True, None, torch.float32),
        lambda module: module.LayerNorm(WIDTH, elementwise_affine=True),
        lambda module: module.RMSNorm(WIDTH, None, True),
        lambda module: module.SiLU(inplace=False),
        lambda module: module.Dropout(0.1, False),
    ):
        assert make(nn).state_dict().keys() == make(torch.nn).state_dict().keys()
    for wrong in (
        lambda: nn.Linear(WIDTH, 3, dtype=torch.float16),
        lambda: nn.LayerNorm(WIDTH, 1e-5, False),
        lambda: nn.SiLU(True),
        lambda: nn.Dropout(0.1, inplace=True),
    ):
        with pytest.raises(KernelError, match="may be"):
            wrong()
