"""What may stand in the forward pass of a captured model, and the line that is named where something may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.kernels.capturing.capture import CaptureError, capture, declaring
from bitwitness.kernels.capturing.graph import Graph, GraphError
from bitwitness.kernels.errors import KernelError

HEAD = """
import random

import numpy
import torch

from bitwitness.kernels import nn

CALLS = 0

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2.0

@torch.compile
def compiled(x): return torch.sigmoid(x)

def number(x):
    global CALLS
    CALLS += 1
    return x

class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.embed, self.up, self.down = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop = torch.nn.Dropout(0.5)
        self.head = nn.Linear(8, 9)
        {declare}

    def forward(self, ids):
        x = self.embed(ids)
        {body}
        return self.head(x)
"""
DECLARED, BODY = 30, 34  # the lines that a test writes


def captured(folder: Path, body: str = "pass", declare: str = "pass") -> Graph:
    file = folder / "mine.py"
    file.write_text(HEAD.format(declare=declare, body=body))
    scope: dict[str, Any] = {"__name__": "mine"}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with declaring(str(file)):
        model = scope["M"]()
    return capture(model, window=4, seed=0, z_loss=0.0, file=str(file))


@pytest.mark.parametrize(
    "body",
    [
        "x = x + self.up(x)",
        "x = x * self.up(x) + x",
        "x = self.up(x.view(-1, 8)).view(ids.shape[0], 4, 8)",
        "x = self.up(x.flatten(0, 1)).unflatten(0, (-1, 4)).contiguous().clone()",
        "x = self.down(self.up(x)) if self.training else self.down(self.up(x))",
        "x = self.up(self.up(x))",
    ],
)
def test_modules_sums_products_and_views_pass(tmp_path: Path, body: str) -> None:
    if "down" not in body:
        body += "; x = x + self.down(x)"
    if "up" not in body:
        body += "; x = self.up(x)"
    graph = captured(tmp_path, body)
    assert graph.vocabulary == 9 and {p.name for p in graph.parameters} >= {"embed.weight", "up.weight", "head.bias"}
    again = Graph.from_json(json.loads(json.dumps(graph.to_json())))
    assert again == graph


REFUSED = [
    ("x = torch.sin(x)", "torch's sin has no defined bits"),
    ("x = x * 0.5", "a number in mul is not an operator of ours"),
    ("x = 1 + x", "a number in add is not an operator of ours"),
    ("x = x - self.up(x)", "torch's sub has no defined bits"),
    ("x = torch.relu(x)", "torch's relu has no defined bits"),
    ("x += self.up(x)", "torch's add_ has no defined bits: nothing is changed in place"),
    ("x.mul_(x)", "torch's mul_ has no defined bits: nothing is changed in place"),
    ("x = self.drop(x)", "random numbers come from nn.Dropout alone"),
    ("x = torch.nn.functional.dropout(x, 0.1)", "random numbers come from nn.Dropout alone"),
    ("x = x + torch.randn(x.shape)", "random numbers come from nn.Dropout alone"),
    ("x = x if ids[0, 0].item() else self.up(x)", "cannot depend on the numbers in it"),
    ("x = x if x.sum() > 0 else self.up(x)", "torch's sum has no defined bits"),
    ("x = x if (ids == 3).any() else self.up(x)", "torch's eq has no defined bits"),
    ("x = x + x.mean(-1, keepdim=True)", "torch's mean has no defined bits"),
    ("x = x[..., :4]", "slice takes a part of a tensor"),
    ("x = x + x[:, :1].expand_as(x)", "slice takes a part of a tensor"),
    ("x = self.up(x.transpose(0, 1))", "a tensor that a view has turned"),
    ("x = self.up(x.transpose(1, 2).contiguous())", "a tensor that a view has turned"),
    ("x = torch.cat([x, x], -1)", "torch's cat has no defined bits"),
    ("x = x @ self.up.weight", "has no defined bits"),
    ("x = torch.softmax(x, -1)", "softmax has no defined bits"),
    ("x = x.double()", "has no defined bits"),
    ("x = x + self.up.bias", "add takes two float32 tensors of one shape, not"),
    ("x = torch.nn.functional.scaled_dot_product_attention(x, x, x)", "a number in mul is not an operator of ours"),
    ("x = self.nothing(x)", "AttributeError: 'M' object has no attribute 'nothing'"),
    ("x = self.up(torch.ones(2, 4, 8))", "torch's ones has no defined bits"),
    ("x.numpy()", "what a program does cannot depend on them"),
    ("x = torch.from_numpy(x.detach().numpy())", "what a program does cannot depend on them"),
    ("x = x if x.tolist() else x", "what a program does cannot depend on them"),
    ("x = x.to('cpu')", "what a program does cannot depend on them"),
    ("x = torch.nn.functional.gelu(x)", "bitwitness.kernels has nn.GELU for it"),
    ("x = torch.nn.functional.linear(x, self.up.weight)", "bitwitness.kernels has nn.Linear for it"),
    ("x = x.half().float()", "torch's cast to float16 has no defined bits: all numbers are float32"),
    ("x = x + self.embed(ids.long())", "torch's cast to int64 has no defined bits"),
    ("x = torch._neg_view(x)", "torch's _neg_view has no defined bits"),
    ("x = x.view(torch.int32).view(torch.float32)", "torch's view has no defined bits"),
    ("x = Doubled.apply(x)", "a number in mul"),
    ("x = compiled(x)", "torch's sigmoid has no defined bits"),
    ("x.register_hook(lambda g: g.clamp(-1, 1)) if self.training else 0", "the gradient of forward needs it"),
    ("self.w = torch.nn.Parameter(torch.empty(8, 8))", "forward makes or changes the parameter w"),
    ("x = nn.Linear(8, 8)(x)", "forward makes or changes the parameter weight"),
    ("self.up, self.down = self.down, self.up", "forward makes or changes the module up"),
    ("x = self.up(x.flatten(1))", "a module got"),
    ("x = x + torch.empty_like(x)", "neither input, parameter nor a result: perhaps a buffer, or a constant"),
    ("raise SystemExit(3)", "it ends the program that reads it"),
]


ELSEWHERE = (
    "mine.py:13 (def forward(ctx, x): return x * 2.0): ",
    "mine.py:16 (def compiled(x): return torch.sigmoid(x)): ",
)
"""Lines of functions that forward calls."""


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[body for body, _ in REFUSED])
def test_anything_else_is_refused_with_its_line(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as error:
        captured(tmp_path, body)
    said = str(error.value)
    assert said.startswith((f"mine.py:{BODY} ({body}): ", *ELSEWHERE)) and "\n" not in said


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        ("self.fc = torch.nn.Linear(8, 8)", "torch's uniform_ has no defined bits: a constructor only declares"),
        ("self.register_buffer('mask', torch.ones(4, 4))", "torch's ones has no defined bits"),
        ("torch.nn.init.normal_(self.up.weight)", "torch's normal_ has no defined bits: a constructor only declares"),
        ("self.up = nn.Linear(8, 8, wrong=True)", "TypeError: .*wrong"),
        ("self.up = nn.Linear(8, 8, dtype=torch.float16)", "dtype may be torch.float32"),
        ("self.up.half()", "torch's _to_copy has no defined bits: a constructor only declares"),
        ("raise SystemExit(3)", "it ends the program that reads it"),
    ],
)
def test_a_constructor_only_declares(tmp_path: Path, declare: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as error:
        captured(tmp_path, "x = self.down(self.up(x))", declare)
    assert str(error.value).startswith(f"mine.py:{DECLARED} ({declare}): ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = self.up(x)", "parameter down.weight is not used by forward"),
        ("x = self.down(self.up(x)) if ids.shape[0] == 2 else self.up(self.down(x))", "at another number of windows"),
        ("x = self.down(self.up(x)); x = x if random.random() < 0 else self.head(x)", "must return logits|a module of"),
        ("return ids", "must return logits"),
        ("return None", "must return logits"),
    ],
)
def test_what_is_no_model(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(KernelError, match=message) as error:
        captured(tmp_path, body)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # What would do something else in a later step, and is the same in the few passes of a capture.
        (
            "x = x + x if random.random() < 1e-9 else x",
            "forward draws from the generator of random: random numbers come",
        ),
        ("x = x + x if numpy.random.rand() < 1e-9 else x", "forward draws from the generator of numpy.random"),
        ("self.count += 1", r"forward changes self\.count: a step does the same"),
        ("number(x)", "forward changes CALLS"),
        ("self.eval()", r"forward changes self\.(?:\w+\.)*training"),
        ("self.drop.train()", r"forward changes self\.drop\.training"),
        (
            "self._modules['up'], self._modules['down'] = self.down, self.up",
            "forward changes the modules or parameters",
        ),
        # What the user's own `except` would hide.
        ("\n        try: x = torch.sin(x)\n        except Exception: x = x + x", r"mine\.py:35 .*torch's sin"),
        # Gradients that are not those of the model's parameters, or of none.
        ("import copy; x = copy.deepcopy(self.up)(x)", "up/2 makes the gradient of a parameter that is none"),
        ("self.up.weight.register_hook(lambda g: g + g) if self.training else 0", "a hook must not change it"),
        ("\n        with torch.no_grad(): return self.head(x)", "no parameter has a gradient"),
        ("return self.head(x).transpose(0, 1)", "logits that a view has turned"),
    ],
)
def test_what_would_silently_be_another_program(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(KernelError, match=message) as error:
        captured(tmp_path, f"x = self.down(self.up(x)); {body}" if not body.startswith("\n") else body)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            "self.head = nn.Linear(8, 9, bias=False); self.head.weight.data = self.embed.weight.data",
            r"parameters embed\.weight and head\.weight share memory and are two",
        ),
        ("self.up.weight.requires_grad_(False)", r"up\.weight does not require a gradient; optimizer\.frozen"),
        ("self.add_module('a b', nn.GELU())", "module 'a b': names are made of"),
        ("self.ü = nn.Linear(8, 8)", r"module '\\xfc': names are made of"),
        ("self.jit = torch.jit.script(torch.nn.Identity())", r"module jit was compiled by torch\.jit"),
    ],
)
def test_parameters_and_modules_that_no_step_can_have(tmp_path: Path, declare: str, message: str) -> None:
    with pytest.raises(KernelError, match=message) as error:
        captured(tmp_path, "x = self.down(self.up(x))", declare)
    assert "\n" not in str(error.value)


def test_what_runs_again_in_the_backward_pass_has_its_bits(tmp_path: Path) -> None:
    """torch's checkpointing: a second forward call inside the backward pass, with the name of its module."""
    graph = captured(
        tmp_path,
        "from torch.utils.checkpoint import checkpoint as again; x = self.down(again(self.up, x, use_reentrant=False))",
    )
    plain = captured(tmp_path, "x = self.down(self.up(x))")
    assert [node.module for node in graph.step if node.op == "matmul_nt"] == ["up", "down", "head", "up"]
    assert [b.module for b in graph.boundaries] == [b.module for b in plain.boundaries] == ["embed", "up", "down"]


def test_levels_of_blocks_are_tapped_while_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare = "self.deep = torch.nn.Sequential(torch.nn.Sequential(nn.GELU(), nn.SiLU()), nn.GELU())"
    body = "x = self.deep(self.down(self.up(x)))"
    names = [boundary.module for boundary in captured(tmp_path, body, declare).boundaries]
    assert names == ["embed", "up", "down", "deep.0", "deep"]
    for most, kept in ((4, ["embed", "up", "down", "deep"]), (2, ["embed", "up"])):
        monkeypatch.setattr("bitwitness.kernels.capturing.capture.MOST_BOUNDARIES", most)
        assert [boundary.module for boundary in captured(tmp_path, body, declare).boundaries] == kept


def test_parameters_must_say_how_they_begin(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="parameter scale of M does not say how it begins"):
        captured(tmp_path, declare="self.scale = torch.nn.Parameter(torch.empty(8))")


def changed(graph: Graph, path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(graph.to_json()))
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "captured/2"),
        (("window",), 0),
        (("more",), 1),
        (("vocabulary",), "9"),
        (("parameters", 0, "name"), "other"),
        (("parameters", 0, "shape"), [9.0, 8]),
        (("parameters", 0, "initial"), {"std": "7ff8000000000000"}),
        (("gradients", "up.bias"), []),
        (("gradients", "up.bias", 0, "value"), 0),
        (("gradients", "up.bias", 0, "offset"), 8),
        (("step", 0, "op"), "exec"),
        (("step", 0, "version"), 2),
        (("step", 0, "operands", 0, "read"), "elsewhere"),
        (("step", 0, "operands", 1, "read"), ["nobody.weight"]),
        (("step", 1, "operands", 0, "read"), 99),
        (("step", 1, "operands", 2, "write"), 0),
        (("step", 1, "operands", 0, "shape"), ["0W", 8]),
        (("step", 1, "operands"), []),
        (("step", 1, "attributes"), {}),
        (("loss",), []),
        (("step",), {}),
    ],
)
def test_a_graph_is_checked_when_it_is_read(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    graph = captured(tmp_path, "x = self.down(self.up(x))")
    with pytest.raises(GraphError) as error:
        Graph.from_json(changed(graph, path, value))
    assert "\n" not in str(error.value)
    for junk in (None, [], {}, "x", 3):
        with pytest.raises(GraphError):
            Graph.from_json(junk)
