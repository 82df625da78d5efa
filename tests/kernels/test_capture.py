"""What may stand in the forward pass of a captured model, and the line that is named where something may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.kernels.capture import CaptureError, capture, declaring
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.graph import Graph, GraphError

HEAD = """
import random

import torch

from bitwitness.kernels import nn

class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop = torch.nn.Dropout(0.5)
        self.head = nn.Linear(8, 9)
        {declare}

    def forward(self, ids):
        x = self.embed(ids)
        {body}
        return self.head(x)
"""
DECLARED, BODY = 14, 18  # the lines that a test writes


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
    ("x.numpy()", "RuntimeError|TypeError|NotImplementedError|has no defined bits"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[body for body, _ in REFUSED])
def test_anything_else_is_refused_with_its_line(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as error:
        captured(tmp_path, body)
    assert str(error.value).startswith(f"mine.py:{BODY} ({body}): ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        ("self.fc = torch.nn.Linear(8, 8)", "torch's uniform_ has no defined bits: a constructor only declares"),
        ("self.register_buffer('mask', torch.ones(4, 4))", "torch's ones has no defined bits"),
        ("torch.nn.init.normal_(self.up.weight)", "torch's normal_ has no defined bits: a constructor only declares"),
        ("self.up = nn.Linear(8, 8, wrong=True)", "TypeError: .*wrong"),
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
