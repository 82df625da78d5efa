"""A model of the user's own: the bits of the built-in one, any cut of a step, its guard, its record and its audit."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitwitness.kernels import nn
from bitwitness.kernels.capturing.graph import Graph
from bitwitness.kernels.capturing.graph_rules import MOST_CALLS, GraphError
from bitwitness.kernels.dropout_rule import dropout_key
from bitwitness.kernels.errors import KernelError
from bitwitness.ledger import jcs
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing import plan
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.recheck import recheck
from bitwitness.trainer.auditing.venue import LocalVenue
from bitwitness.trainer.config import ConfigError, RunConfig, config_from_ledger, parse_config
from bitwitness.trainer.data import Dataset, WindowStream
from bitwitness.trainer.history import open_run
from bitwitness.trainer.models import own_model
from bitwitness.trainer.models.captured import CapturedModel
from bitwitness.trainer.run import train
from bitwitness.trainer.state import State, initial_state
from bitwitness.trainer.step import Workspace, step

from .conftest import make_project, small_table
from .own_models import GPT, LLAMA
from .served import stranger
from .test_run import roots
from .test_run_bfp import Stop, stop_after

ARGUMENTS = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocabulary": 257}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("own") / "project")
    (made.root / "llama.py").write_text(LLAMA)
    (made.root / "gpt.py").write_text(GPT)
    return made


def own_config(module: str, arguments: dict[str, Any] | None = None, **run: Any) -> RunConfig:
    table = small_table(**run)
    table["model"] = {"module": module, "arguments": arguments or {}}
    return parse_config(table, where="test")


def stream_of(project: Project, config: RunConfig) -> WindowStream:
    data = Dataset.open(project.data_dir, "text")
    return WindowStream(data, config.data.window, config.run.seed, reset_documents=config.data.reset_documents)


def steps(project: Project, config: RunConfig, workspace: Workspace, count: int = 3) -> tuple[State, list[str]]:
    state, stream, found = initial_state(config, workspace.layout), stream_of(project, config), []
    for _ in range(count):
        record = step(state, stream, workspace)
        found.append(f"{state.commit().digest} {record.to_json()}")
    return state, found


def own_workspace(project: Project, config: RunConfig, threads: int = 1, windows_at_once: int = 0) -> Workspace:
    programs = own_model.load(project.root, config).programs
    return Workspace(config, threads, windows_at_once, captured=programs)


@pytest.mark.parametrize("precision", ["fp32", "bfp"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_built_in_model_written_with_modules_has_its_bits(project: Project, tied: bool, precision: str) -> None:
    table = small_table(precision=precision)
    table["model"]["tied"], table["loss"], table["data"]["reset_documents"] = tied, {"z_loss": 1e-4}, True
    built_in = parse_config(table, where="test")
    own = parse_config(
        {**table, "model": {"module": "llama.py:Llama", "arguments": {**ARGUMENTS, "tied": tied}}}, where="test"
    )
    theirs, ours = Workspace(built_in, 2), own_workspace(project, own, 2)
    state, expected = steps(project, built_in, theirs)
    mine, found = steps(project, own, ours)
    assert found == expected
    stream = stream_of(project, own)
    assert ours.losses(mine.params, stream, [0, 1]) == theirs.losses(state.params, stream, [0, 1])


@pytest.mark.parametrize("precision", ["fp32", "bfp"])
def test_threads_and_windows_at_once_are_not_in_the_bits(project: Project, precision: str) -> None:
    config = own_config("gpt.py:GPT", precision=precision)
    _, expected = steps(project, config, own_workspace(project, config, 1, 1))
    for threads, windows_at_once in ((1, 2), (2, 1), (3, 2)):
        assert steps(project, config, own_workspace(project, config, threads, windows_at_once))[1] == expected


def test_the_bits_are_those_of_the_modules_run_eagerly(project: Project) -> None:
    """One shard's losses and gradients, through the step program and through torch's autograd; dropout included."""
    config = own_config("gpt.py:GPT", precision="fp32")  # as the modules compute
    workspace = own_workspace(project, config)
    state = initial_state(config, workspace.layout)
    grads, loss, _ = workspace.shard_gradient(workspace.weights(state.params), stream_of(project, config), 4)
    scope: dict[str, Any] = {}
    exec(GPT, scope)
    model = nn.named(scope["GPT"]())
    nn.initialise(model, config.run.seed)
    weights = workspace.layout.tensors(state.params)
    assert all(np.array_equal(p.detach(), weights[name]) for name, p in model.named_parameters())
    rows = stream_of(project, config).samples(4, 2)
    ids, targets = (torch.from_numpy(part).view(2, -1) for part in (rows.inputs, rows.targets))
    with nn.tokens(nn.samples(4, 2, config.data.window, seed=config.run.seed)):
        total = nn.CrossEntropyLoss(reduction="sum")(model(ids), targets)
        total.backward()
    assert total.item() == pytest.approx(loss, abs=2.0**-24 * loss)
    found = workspace.layout.tensors(grads)
    once = [name for name in found if not name.startswith(("block.", "tokens."))]  # used once: no sum to associate
    assert once and all(np.array_equal(found[name], dict(model.named_parameters())[name].grad) for name in once)


def taps_of(project: Project, config: RunConfig, workspace: Workspace, sample: int = 4) -> dict[str, Any]:
    """The taps of one shard, by name, in their order."""
    state = initial_state(config, workspace.layout)
    grads, _, _ = workspace.shard_gradient(workspace.weights(state.params), stream_of(project, config), sample)
    return {name: values.copy() for name, values in workspace.tapped(0, grads)}


GPT_BLOCKS = ["tokens", "positions", "drop", "block.attention", "block", "block.attention/2", "block/2"]
GPT_BLOCKS += ["last.attention", "last", "norm"]


def test_blocks_are_tapped_under_the_names_of_their_modules(project: Project) -> None:
    """In the order of forward, each value once, and the gradient of each; the bits of the step are the same."""
    config = own_config("gpt.py:GPT")
    programs = own_model.load(project.root, config).programs
    plain, tapping = Workspace(config, 2, captured=programs), Workspace(config, 1, 1, taps=True, captured=programs)
    assert steps(project, config, tapping)[1] == steps(project, config, plain)[1]
    found = taps_of(project, config, tapping)
    outputs = [f"shard/0/module/{name}/output" for name in GPT_BLOCKS]
    # The sum with the positions has the gradient of both its terms, which is told once.
    gradients = [f"shard/0/module/{name}/gradient" for name in GPT_BLOCKS if name != "positions"]
    assert list(found)[: len(outputs + gradients) + 1] == [*outputs, *gradients, "shard/0/loss"]
    assert all(found[name].shape == (48, 32) for name in outputs + gradients)
    again = taps_of(project, config, Workspace(config, 2, 2, taps=True, captured=programs))
    assert all(np.array_equal(found[name], again[name]) for name in again)


def test_taps_of_blocks_are_those_of_the_built_in_model_and_of_eager_modules(project: Project) -> None:
    table = small_table(precision="fp32")
    own = parse_config({**table, "model": {"module": "llama.py:Llama", "arguments": ARGUMENTS}}, where="test")
    built_in = parse_config(table, where="test")
    theirs = taps_of(project, built_in, Workspace(built_in, 2, taps=True))
    programs = own_model.load(project.root, own).programs
    ours = taps_of(project, own, Workspace(own, 2, taps=True, captured=programs))
    for layer in range(2):
        for part, name in (("output", "input"), ("gradient", "input.grad")):
            expected = theirs[f"shard/0/block.{layer + 1}.{name}"]
            assert np.array_equal(ours[f"shard/0/module/model.layers.{layer}/{part}"], expected)
    scope: dict[str, Any] = {}
    exec(LLAMA, scope)
    model = scope["Llama"](**ARGUMENTS)
    nn.initialise(model, own.run.seed)
    seen: dict[str, Any] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            seen[name + "/output"] = output.detach()
            output.register_hook(lambda gradient: seen.update({name + "/gradient": gradient.clone()}))

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(keep(name))
    rows = stream_of(project, own).samples(4, 2)
    ids, targets = (torch.from_numpy(part).view(2, -1) for part in (rows.inputs, rows.targets))
    with nn.tokens(nn.samples(4, 2, own.data.window, seed=own.run.seed)):
        nn.CrossEntropyLoss(reduction="sum")(model(ids), targets).backward()
    tapped = {name.removeprefix("shard/0/module/"): values for name, values in ours.items() if "/module/" in name}
    assert len(tapped) == 12 and all(
        np.array_equal(values, seen[name].reshape(values.shape)) for name, values in tapped.items()
    )


@pytest.mark.parametrize("precision", ["fp32", "bfp"])
def test_any_values_may_be_called_boundaries(project: Project, precision: str) -> None:
    """A trainer may name what he likes: with every value of the step tapped, the bits stay."""
    config = own_config("gpt.py:GPT", precision=precision)
    own = own_model.load(project.root, config)
    graph = json.loads(own.data)
    slots = [slot for call in graph["step"] for slot in call["operands"] if isinstance(slot.get("write"), int)]
    values = sorted({slot["write"] for slot in slots if any(isinstance(extent, str) for extent in slot["shape"])})
    assert 100 < len(values) <= 256
    graph["boundaries"] = [{"module": f"m{value}", "value": value} for value in values]
    every = CapturedModel(own.programs.config, Graph.from_json(graph))
    expected = steps(project, config, Workspace(config, 2, captured=own.programs), 1)[1]
    tapping = Workspace(config, 1, 1, taps=True, captured=every)
    assert steps(project, config, tapping, 1)[1] == expected
    taps = taps_of(project, config, tapping)
    assert all(np.isfinite(taps[f"shard/0/module/m{value}/output"]).all() for value in values)


def test_a_plan_counts_what_audits_tap(project: Project) -> None:
    """Outputs and gradients of blocks are kept for a shard, however many windows are computed at a time."""
    config = own_config("gpt.py:GPT")
    programs = own_model.load(project.root, config).programs
    probe = plan._probe(programs.config, 1, programs)
    assert probe.taps == 4 * 24 * 32 * (2 * len(GPT_BLOCKS) - 1)
    assert plan._memory(config, 1, probe) == plan._memory(config, 1, replace(probe, taps=0)) + 2 * probe.taps


def test_every_call_names_its_module(project: Project) -> None:
    graph = json.loads(own_model.load(project.root, own_config("gpt.py:GPT")).data)
    by_module = {(call.get("module", ""), call["op"]) for call in graph["step"]}
    assert {("block.attention", "attention"), ("block.attention/2", "attention_backward")} <= by_module
    assert {("last.norm2", "layernorm_backward"), ("block/2", "mul"), ("", "cross_entropy")} <= by_module
    assert not [call for call in graph["step"] if call["op"] != "cross_entropy" and not call.get("module")]
    names = {"block.up", "block.up/2"}
    assert {call["module"] for call in graph["step"] if call.get("module", "").startswith("block.up")} == names


def test_a_run_is_resumed_and_audited_without_the_file(tmp_path: Path) -> None:
    config = own_config("gpt.py:GPT", {"p": 0.25}, eval_every=3, eval_windows=2)
    whole, stopped = make_project(tmp_path / "whole"), make_project(tmp_path / "stopped")
    for made in (whole, stopped):
        (made.root / "gpt.py").write_text(GPT)
    assert train(whole, config, threads=1).outcome == "completed"
    with pytest.raises(Stop):
        train(stopped, config, threads=3, report=stop_after(5))
    train(stopped, config, threads=2, windows_at_once=1, resume=True)
    assert roots(stopped) == roots(whole) and len(roots(whole)) == 6
    (stopped.root / "gpt.py").write_text("raise SystemExit('an audit must not run this')")
    assert audit(stopped, "r", samples=3, threads=1, windows_at_once=1).result == "match"
    with stopped.open_ledger() as ledger:
        genesis = open_run(ledger, "r").genesis
    stored = stopped.runs_dir / "r" / "model.json"
    assert genesis["model"]["program"] == hashlib.sha256(stored.read_bytes()).hexdigest()
    assert genesis["model"]["source"] == hashlib.sha256(GPT.encode()).hexdigest()
    assert {"dropout", "gelu", "layernorm_backward", "bias_backward"} <= genesis["arithmetic"]["operators"].keys()
    assert "erf" in genesis["arithmetic"]["functions"] and "swiglu" not in genesis["arithmetic"]["operators"]
    stored.write_bytes(stored.read_bytes().replace(b'"p":"3e800000"', b'"p":"3e000000"'))
    report = audit(stopped, "r", samples=0, threads=1)
    assert report.result == "unavailable" and "not the one that the ledger commits to" in report.units[0].detail
    stored.unlink()
    assert audit(stopped, "r", samples=0, threads=1).result == "unavailable"


def test_a_changed_file_is_refused_at_resume(tmp_path: Path) -> None:
    made = make_project(tmp_path / "project")
    (made.root / "gpt.py").write_text(GPT)
    config = own_config("gpt.py:GPT")
    with pytest.raises(Stop):
        train(made, config, threads=2, report=stop_after(1))
    (made.root / "gpt.py").write_text(GPT + "\n# another file\n")
    with pytest.raises(own_model.ModelChanged, match=r"gpt.py is not the file that run r began with"):
        train(made, config, threads=2, resume=True)
    (made.root / "gpt.py").write_text(GPT)
    assert train(made, config, threads=2, resume=True).outcome == "completed"


def test_the_record_says_what_every_layer_drops(project: Project, tmp_path: Path) -> None:
    """Training fills it in; a file may say it, and then it must be so."""
    config = own_model.load(project.root, own_config("gpt.py:GPT", {"p": 0.3})).programs.config
    assert config.dropout == {"drop": 0.3, "block.drop": 0.3, "last.drop": 0.3}
    assert config_from_ledger(config.resolved()) == config
    assert own_model.load(project.root, config).programs.config == config
    assert own_model.load(project.root, own_config("gpt.py:GPT", {"p": 0.0})).programs.config.dropout == {}
    assert own_model.load(project.root, own_config("llama.py:Llama", ARGUMENTS)).programs.config.dropout == {}
    for wrong, said in (
        ({"drop": 0.3}, "'block.drop' is p = 0.3 there, none"),
        ({**config.dropout, "x": 0.5}, "'x' is none"),
    ):
        with pytest.raises(own_model.ModelError, match=said):
            own_model.load(project.root, config.with_dropout(wrong))
    table = small_table()
    table["model"] = {"module": "gpt.py:GPT", "dropout": {"drop": 1.0}}
    with pytest.raises(ConfigError, match=r"model.dropout.drop"):
        parse_config(table, where="test")


def test_the_configuration_comes_back_from_the_ledger() -> None:
    config = own_config("dir/a_b.py:M", {"x": 1, "y": 0.5, "z": "3ff0000000000000", "on": True})
    again = config_from_ledger(config.resolved())
    assert again == config and [type(v) for v in again.model.arguments.values()] == [int, float, str, bool]
    table = small_table()
    table["model"] = "gpt.py:GPT"
    assert parse_config(table, where="test") == own_config("gpt.py:GPT")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"module": "../x.py:M"}, "module"),
        ({"module": "a/../x.py:M"}, "must name a file inside the project folder"),
        ({"module": "/x.py:M"}, "module"),
        ({"module": "x.py"}, "module"),
        ({"module": "x.py:M", "layers": 2}, "unknown key model.layers"),
        ({"module": "x.py:M", "arguments": {"a b": 1}}, "is not the name of an argument"),
        ({"module": "x.py:M", "arguments": {"a": [1]}}, "model.arguments.a"),
    ],
)
def test_what_is_no_module_is_one_line(model: dict[str, Any], message: str) -> None:
    table = small_table()
    table["model"] = model
    with pytest.raises(ConfigError, match=message) as error:
        parse_config(table, where="run.toml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", r"^own.py:1: SyntaxError"),
        ("import nothing_like_it", r"^own.py:1: ModuleNotFoundError: No module named 'nothing_like_it'$"),
        ("import sys\nsys.exit(0)", r"^own.py:2: it ends the program"),
        (
            "import torch\nclass M(torch.nn.Module):\n    def __init__(self): raise SystemExit",
            r"^own.py:3 \(.*\): it ends the program",
        ),
        (
            "from bitwitness.kernels import nn\nimport torch\nclass M(torch.nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        self.e = nn.Embedding(300, 4)\n"
            "    def forward(self, ids): raise SystemExit(0)",
            r"^own.py:7 \(.*\): it ends the program",
        ),
        ("class Halt(BaseException): ...\nraise Halt('enough')", r"^own.py:2: Halt: enough$"),
        ("raise GeneratorExit", r"^own.py:1: GeneratorExit"),
        ("import os\nos._exit(0)", r"^own.py:2: it ends the program"),
        ("def f(): f()\nf()", r"^own.py:1: RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", r"^own.py:3: E: it does not say why$"),
        ("def __getattr__(name):\n    raise OSError(name)", r"^own.py:2: OSError: M$"),
        (
            "import torch\nclass Halt(BaseException): ...\nclass M(torch.nn.Module):\n"
            "    def __init__(self): raise Halt('now')",
            r"^own.py:4 \(.*\): Halt: now$",
        ),
        (
            "from bitwitness.kernels import nn\nimport torch\nclass Halt(BaseException): ...\n"
            "class M(torch.nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        self.e = nn.Embedding(300, 4)\n"
            "    def forward(self, ids): raise Halt",
            r"^own.py:8 \(.*\): Halt: ",
        ),
        (
            "import torch\nclass M(torch.nn.Module):\n    def train(self, mode=1):\n        raise OverflowError('no')",
            r"^own.py:4: OverflowError: no$",
        ),
        (
            "import torch\nclass M(torch.nn.Module):\n    named_modules = None",
            r"^own.py: TypeError: ",
        ),
        ("M = 3", r"^own.py has no torch.nn.Module M"),
        ("import torch\nclass M(torch.nn.Module):\n    def __init__(self, a): ...", r"^constructor: TypeError"),
    ],
)
def test_a_file_that_is_no_model_is_one_line(project: Project, text: str, message: str) -> None:
    (project.root / "own.py").write_text(text)
    with pytest.raises((own_model.ModelError, KernelError), match=message) as error:
        own_model.load(project.root, own_config("own.py:M"))
    assert "\n" not in str(error.value)
    with pytest.raises(own_model.ModelError, match="No such file"):
        own_model.load(project.root, own_config("none.py:M"))


def test_what_a_file_prints_and_sets_stays_with_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Results go to stdout, and the scalars of a step are rounded with subnormals kept."""
    noisy = "import torch\nprint('imported')\ntorch.set_flush_denormal(True)\n" + GPT
    (project.root / "noisy.py").write_text(
        noisy.replace("x = self.drop(self.pos", "print(x := 1); x = self.drop(self.pos")
    )
    own_model.load(project.root, own_config("noisy.py:GPT"))
    said = capsys.readouterr()
    assert said.out == "" and "imported" in said.err and said.err.count("1\n") == 4
    assert (torch.tensor(1e-40) * 1.0).item() > 0.0
    (project.root / "double.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\n" + GPT)
    with pytest.raises(KernelError, match=r"is torch\.float64; all of a model is float32"):
        own_model.load(project.root, own_config("double.py:GPT"))
    assert torch.get_default_dtype() == torch.float32


def test_an_interrupt_of_a_file_stays_one(project: Project) -> None:
    """At each of the places where the user's code runs."""
    head = "from bitwitness.kernels import nn\nimport torch\nclass M(torch.nn.Module):\n    def __init__(self):\n"
    built = head + "        super().__init__()\n        self.e = nn.Embedding(300, 4)\n    def forward(self, ids): "
    for text in ("", head + "        ", built):
        (project.root / "own.py").write_text(text + "raise KeyboardInterrupt\n")
        with pytest.raises(KeyboardInterrupt):
            own_model.load(project.root, own_config("own.py:M"))


LOUD = """
import os, subprocess, sys, threading, time
print("by print")
sys.__stdout__.write("by the stream\\n")
os.write(1, b"by descriptor\\n")
subprocess.run(["echo", "by a program"], check=True)
os.chdir("/")
threading.Thread(target=time.sleep, args=(3600,)).start()
"""


def test_a_file_that_prints_and_goes_on_leaves_the_command_its_result(tmp_path: Path) -> None:
    """By whatever way it prints, stdout is JSON; a thread that never ends does not keep the command from ending."""
    project = make_project(tmp_path / "project")
    (project.root / "loud.py").write_text(LOUD + GPT)
    config = project.root / "own.toml"
    config.write_text(
        'model = "loud.py:GPT"\n[run]\nname = "own"\nsteps = 1\n'
        '[data]\ntrain = "text"\nwindow = 24\nwindows_per_shard = 1\nshards = 1\n'
    )
    command = [sys.executable, "-m", "bitwitness.ledger.cli", "train", "own.toml", "--threads", "1", "--json"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "completed"
    assert all(f"by {way}\n" in done.stderr for way in ("print", "the stream", "descriptor", "a program"))
    assert (project.runs_dir / "own" / "model.json").is_file()


def test_a_vocabulary_too_small_for_the_data_is_refused(project: Project) -> None:
    with pytest.raises(BitwitnessError, match=r"token ids up to 256; model.vocabulary = 100 is too small"):
        train(project, own_config("gpt.py:GPT", {"vocabulary": 100}), threads=1)


# Programs that no capture made ----------------------------------------------------------------------------------


def calls(graph: dict[str, Any], op: str, part: str = "step") -> Iterator[dict[str, Any]]:
    found = [call for call in graph[part] if call["op"] == op]
    assert found
    return iter(found)


def own_loss(graph: dict[str, Any]) -> None:
    graph["loss"] = [
        {
            "attributes": {"value": "3dcccccd"},
            "op": "fill",
            "operands": [{"shape": ["24W"], "write": name}],
            "version": 1,
        }
        for name in ("loss", "nll")
    ]


def told_by_another(graph: dict[str, Any]) -> None:
    """The logits become the gradient of a loss before, which knows the targets."""
    last = graph["loss"][-1]
    logits, targets, loss, nll = last["operands"]
    rest = [{**loss, "write": 9001}, {**nll, "write": 9002}]
    first = {**last, "op": "cross_entropy", "operands": [{**logits, "write": 9000}, targets, *rest]}
    graph["loss"][-1:] = [first, {**last, "operands": [{**logits, "read": 9000}, targets, loss, nll]}]


def swapped_losses(graph: dict[str, Any]) -> None:
    *_, loss, nll = next(calls(graph, "cross_entropy_loss", "loss"))["operands"]
    loss["write"], nll["write"] = "nll", "loss"


def read_targets(graph: dict[str, Any]) -> None:
    next(calls(graph, "embed", "loss"))["operands"][0]["read"] = "targets"


def positions_as_start(graph: dict[str, Any]) -> None:
    next(calls(graph, "attention"))["operands"][1]["read"] = "positions"


def one_sum(graph: dict[str, Any]) -> None:
    next(calls(graph, "layernorm_backward"))["attributes"]["segment"] = 0


def begin_anew(graph: dict[str, Any]) -> None:
    next(calls(graph, "matmul_tn"))["attributes"]["accumulate"] = 0


def wide_window(graph: dict[str, Any]) -> None:
    next(calls(graph, "attention"))["attributes"]["window"] = 12


def add_nothing(graph: dict[str, Any], op: str, *shapes: list[int | str], **attributes: Any) -> None:
    """A call whose results nobody reads, put last."""
    last = graph["step"][-1:] if graph["step"][-1]["op"] == "fill" else graph["step"]
    values = [slot["write"] for call in last for slot in call["operands"] if type(slot.get("write")) is int]
    operands = [{"shape": shape, "write": max(values) + 1 + number} for number, shape in enumerate(shapes)]
    graph["step"].append({"attributes": attributes, "op": op, "operands": operands, "version": 1})


def windows_squared(graph: dict[str, Any]) -> None:
    """Every token with every token of the call: fits one window, and mixes two."""
    add_nothing(graph, "fill", ["576W"], value="3f800000")
    made = graph["step"][-1]["operands"][0]["write"]
    rows = {"read": made, "shape": ["24W", 24]}
    operands = [rows, {"read": made, "shape": ["24W", 24]}, {"shape": ["24W", "24W"], "write": made + 1}]
    graph["step"].append({"attributes": {"accumulate": 0}, "op": "matmul_nt", "operands": operands, "version": 1})


def another_operator(graph: dict[str, Any]) -> None:
    add_nothing(graph, "bfp_exponents", [32])
    made = next(calls(graph, "embed"))["operands"][2]
    graph["step"][-1]["operands"].insert(0, {"read": made["write"], "shape": made["shape"]})


def wide_table(graph: dict[str, Any]) -> None:
    graph["tables"].append({"head_width": 1 << 26, "theta": "40c3880000000000"})


def idle_table(graph: dict[str, Any]) -> None:
    graph["tables"].append({"head_width": 8, "theta": "40c3880000000000"})


def too_many_calls(graph: dict[str, Any]) -> None:
    for _ in range(MOST_CALLS + 1 - len(graph["step"])):
        add_nothing(graph, "fill", [1], value="3f800000")


def odd_module(graph: dict[str, Any]) -> None:
    graph["step"][0]["module"] = "../../x"


def odd_boundary(graph: dict[str, Any]) -> None:
    graph["boundaries"][0]["module"] = "a b"


def same_boundary(graph: dict[str, Any]) -> None:
    graph["boundaries"][1]["module"] = graph["boundaries"][0]["module"]


def same_value(graph: dict[str, Any]) -> None:
    graph["boundaries"][1]["value"] = graph["boundaries"][0]["value"]


def unknown_value(graph: dict[str, Any]) -> None:
    graph["boundaries"][0]["value"] = 1 << 40


def gradient_as_boundary(graph: dict[str, Any]) -> None:
    graph["boundaries"][0]["gradient"] = graph["gradients"]["norm.bias"][0]["value"]


def many_boundaries(graph: dict[str, Any]) -> None:
    graph["boundaries"] = [{"module": f"m{n}", "value": n} for n in range(257)]


def fewer_logits(graph: dict[str, Any]) -> None:
    graph["vocabulary"] = 300


def other_z_loss(graph: dict[str, Any]) -> None:
    next(calls(graph, "cross_entropy_loss", "loss"))["attributes"]["z_loss"] = "3f800000"


def other_seeds_key(graph: dict[str, Any]) -> None:
    """The masks of another seed, in every call of every layer."""
    for call in calls(graph, "dropout"):
        layers = {dropout_key(7, name): name for name in ("drop", "block.drop", "last.drop")}
        key = dropout_key(8, layers[call["attributes"]["key0"], call["attributes"]["key1"]])
        call["attributes"] |= {"key0": key[0], "key1": key[1]}


def other_p(graph: dict[str, Any]) -> None:
    for call in calls(graph, "dropout"):
        call["attributes"] |= {"p": "3e800000", "scale": "3faaaaab"}  # 0.25, 4/3


def other_scale(graph: dict[str, Any]) -> None:
    next(calls(graph, "dropout"))["attributes"]["scale"] = "3f800000"


def drop_nothing(graph: dict[str, Any]) -> None:
    """In one layer the mask is that of another, so that its own is never drawn."""
    keys = [dropout_key(7, name) for name in ("drop", "last.drop")]
    for call in calls(graph, "dropout"):
        if (call["attributes"]["key0"], call["attributes"]["key1"]) == keys[0]:
            call["attributes"] |= {"key0": keys[1][0], "key1": keys[1][1]}


def drop_in_evaluation(graph: dict[str, Any]) -> None:
    """In the place of a GELU."""
    call = next(calls(graph, "gelu", "loss"))
    (x, y), rows = call["operands"], {"read": "places", "shape": ["24W", 3]}
    shape = ["24W", 64]
    drop = next(calls(graph, "dropout"))
    call |= {"op": "dropout", "attributes": drop["attributes"], "version": drop["version"]}
    call["operands"] = [{**x, "shape": shape}, rows, {**y, "shape": shape}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_seeds_key, "by a key that the seed gives no layer"),
        (other_p, "drops with p = 0.25 where model.dropout gives the layer 0.1"),
        (other_scale, "drops with p = 0.1"),
        (drop_nothing, "does not drop in layer drop,"),
        (drop_in_evaluation, "drops where it is evaluated"),
        (own_loss, "not those of one cross_entropy_loss"),
        (told_by_another, "not those of one cross_entropy_loss"),
        (swapped_losses, "is written by cross_entropy_loss where"),
        (read_targets, "operand ids reads 'targets'"),
        (positions_as_start, "operand start reads 'positions'"),
        (one_sum, "segment is not the window"),
        (begin_anew, "begins anew with every call"),
        (wide_window, "window is not the window"),
        (windows_squared, "holds windows along"),
        (another_operator, "no operator of a captured model"),
        (wide_table, "67108864 wide"),
        (idle_table, "no call turns by"),
        (too_many_calls, "8193 operator calls"),
        (fewer_logits, "fewer logits"),
        (odd_module, "no name of a module"),
        (odd_boundary, "has no name"),
        (same_boundary, "named twice"),
        (same_value, "the boundary of two blocks"),
        (unknown_value, "has no row for each token"),
        (gradient_as_boundary, "has no row for each token"),
        (many_boundaries, "257 boundaries"),
        (other_z_loss, "captured with z_loss = 1.0, not 0.0"),
    ],
)
def test_a_program_that_is_no_step_is_refused(
    project: Project, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    """A trainer may store what he likes, as long as his genesis commits to it; an audit must not pass it."""
    own = own_model.load(project.root, own_config("gpt.py:GPT"))
    config, graph = own.programs.config, json.loads(own.data)
    assert CapturedModel(config, Graph.from_json(graph))
    change(graph)
    with pytest.raises(GraphError, match=reason) as error:
        CapturedModel(config, Graph.from_json(graph))
    assert "\n" not in str(error.value)


def train_lax(made: Project, change: Callable[[dict[str, Any]], None], *checks: str, **run: Any) -> None:
    """A trainer whose own build lets pass what he makes of the model; it does not `checks`."""
    (made.root / "gpt.py").write_text(GPT)
    honest = own_model.load

    def load(root: Path, config: RunConfig) -> own_model.OwnModel:
        own = honest(root, config)
        graph = json.loads(own.data)
        change(graph)
        programs = CapturedModel(own.programs.config, Graph.from_json(graph))
        return own_model.OwnModel(programs, jcs.encode(graph), own.source)

    with pytest.MonkeyPatch.context() as lax:
        lax.setattr(own_model, "load", load)
        for check in checks:
            lax.setattr(check, lambda *given: None)
        assert train(made, own_config("gpt.py:GPT", steps=2, **run), threads=1).outcome == "completed"


def test_an_audit_of_a_program_that_is_no_step_covers_nothing(tmp_path: Path) -> None:
    made = make_project(tmp_path / "project")
    train_lax(made, own_loss, "bitwitness.kernels.capturing.graph.check_rules", eval_every=1)
    report = audit(made, "r", samples=2, threads=1)
    assert report.result == "inconclusive" and report.compared == ()
    assert "not those of one cross_entropy_loss" in str(report.units[0].detail)


@pytest.mark.parametrize("change", [other_seeds_key, other_p])
def test_an_audit_finds_masks_that_are_not_those_of_configuration_and_seed(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """The chain replays to the last bit, with a program that nobody's configuration and seed give."""
    made = make_project(tmp_path / "project")
    train_lax(made, change, "bitwitness.trainer.models.captured._check_dropout")
    with pytest.MonkeyPatch.context() as lax:  # as an audit would pass it that does not look
        lax.setattr("bitwitness.trainer.models.captured._check_dropout", lambda *given: None)
        assert audit(made, "r", samples=2, threads=1).result == "match"
    report = audit(made, "r", samples=2, threads=1)
    assert report.result == "mismatch" and report.compared == ()
    (unit,) = (unit for unit in report.units if unit.found is not None)
    assert (unit.unit.first, unit.unit.last) == (0, 0) and unit.found is not None and unit.found["field"] == "model"
    assert "the model drops" in str(unit.reason)
    # Whoever called it a match is refuted.
    alice = stranger(made, tmp_path / "alice")
    with made.open_ledger() as ledger:
        (first,) = ledger.connection.execute("SELECT min(entry) FROM audits").fetchone()
    found = recheck(LocalVenue(made, alice), str(first), threads=1)
    assert found.result == "refuted" and "steps 0 to 0: it says match, the replay mismatch" in str(found.reason)
