"""Trace files for the tests: consecutive training steps of a tiny model, and every operator at awkward sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bitwitness.kernels import host, philox
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, ProgramBuilder, call
from bitwitness.kernels.selftest import AWKWARD
from bitwitness.kernels.tracing.recorder import Recorder
from bitwitness.kernels.tracing.trace_file import Array, TraceFile
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.data.windows import Rows
from bitwitness.trainer.state import initial_state
from bitwitness.trainer.traces.trace import RecordingWorkspace, record_steps

LONG = 50304  # what order errors grow with; no multiple of 256 or 4,096
WINDOW, VOCABULARY = 8, 37


class Digits:
    """Windows of a fixed sequence of tokens, every ninth without a target; made of nothing but their number."""

    def samples(self, first: int, count: int) -> Rows:
        at = np.arange(first * WINDOW, (first + count) * WINDOW + 1)
        tokens = ((at * at + 3 * at) % 101 % VOCABULARY).astype(np.int32)
        rows = np.arange(count * WINDOW, dtype=np.int32)
        targets = np.where(at[1:] % 9 == 0, -1, tokens[1:]).astype(np.int32)
        start = rows // WINDOW * WINDOW
        return Rows(tuple(range(first, first + count)), tokens[:-1], targets, rows - start, start)


def config(precision: str) -> Any:
    """A model of some thousand parameters; 3 shards of 2 windows, so that folds and odd ones occur."""
    return parse_config(
        {
            "run": {"name": "r", "steps": 24, "seed": 5, "precision": precision},
            "data": {"train": "digits", "window": WINDOW, "shards": 3, "windows_per_shard": 2},
            "model": {
                **{"layers": 2, "width": 20, "heads": 2, "kv_heads": 1, "hidden": 28},
                **{"vocabulary": VOCABULARY},
            },
            "schedule": {"kind": "cosine", "warmup": 3},
        },
        where="test",
    )


def steps(count: int, precision: str = "fp32", *, threads: int = 2) -> TraceFile:
    """The first `count` steps of that model's training, with the roots that it found here."""
    workspace = RecordingWorkspace(config(precision), threads)
    return record_steps(initial_state(workspace.config, workspace.layout), Digits(), workspace, count)[0]


def normal(name: str, *shape: int) -> Array:
    out = np.empty(shape, np.float32)
    philox.normal(out, philox.derive_key(0, "referee", name))
    return out


def awkward(name: str, *shape: int) -> Array:
    """Normals with infinities, NaNs, zeros and subnormals strewn in, one in 97."""
    out = normal(name, *shape).reshape(-1)
    for count, at in enumerate(range(len(name) % 97, out.size, 97)):
        out[at] = np.array(AWKWARD[count % len(AWKWARD)], np.uint32).view(np.float32)
    return out.reshape(shape)


Case = tuple[str, list[Array], dict[str, float]]
"""Operator, operands, attributes."""


def cases(values: Callable[..., Array], long: int) -> Iterator[Case]:
    """Every operator, its longest sum or row `long` elements, everything else as small as it can be."""

    def empty(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    def ints(numbers: Array) -> Array:
        return numbers.astype(np.int32)

    yield "fill", [empty(long)], {"value": 0.1}
    yield "add", [values("a", long), values("b", long), empty(long)], {}
    a, b = values("A", 3, long), values("B", long, 5)
    yield "matmul_nn", [a, b, empty(3, 5)], {"accumulate": 0}
    yield "matmul_nt", [a, b.T.copy(), values("C", 3, 5)], {"accumulate": 1}
    yield "matmul_tn", [a.T.copy(), b, empty(3, 5)], {"accumulate": 0, "segment": 0}
    yield "matmul_tn", [a.T.copy(), b, values("C", 3, 5)], {"accumulate": 1, "segment": long // 3}

    exponents, magnitudes = np.zeros(long, np.int32), np.zeros(3, np.int32)
    yield "bfp_exponents", [values("W", 4, long), exponents], {}
    yield "bfp_exponents", [values("x", long, 3), magnitudes], {}
    balance = np.zeros(long, np.int32)
    yield "bfp_balance", [exponents, exponents[::-1].copy(), balance], {}
    blocks = -(-long // 128)
    (left, ls), (right, rs) = ((np.zeros((rows, 128 * blocks), np.int16), empty(rows, blocks)) for rows in (3, 5))
    yield "bfp_rows", [values("A", 3, long), exponents, left, ls, magnitudes], {"sign": 1}
    yield "bfp_columns", [b, exponents, right, rs], {"sign": -1, "segment": long}
    yield "matmul_bfp", [left, ls, right, rs, values("C", 3, 5)], {"accumulate": 1}
    three = 3 * -(-(long // 3) // 128)
    thirds = [np.zeros((5, 128 * three), np.int16), empty(5, three)]
    yield "bfp_columns", [b, balance, *thirds], {"sign": 1, "segment": long // 3}
    yield "matmul_bfp", [*thirds, thirds[0].copy(), thirds[1].copy(), empty(5, 5)], {"accumulate": 0}

    yield "embed", [ints(np.array([0, long - 1, 7, 7])), values("E", long, 3), empty(4, 3)], {}
    yield "embed_backward", [ints(np.arange(long) ** 2 % 5), values("dy", long, 3), values("E", 5, 3)], {}
    x, z, dy, gain = (values(name, 2, long) for name in ("x", "z", "dy", "g"))
    yield "rmsnorm", [x, gain[0], empty(2, long), empty(2)], {"epsilon": 1e-5}
    yield "add_rmsnorm", [x, z, gain[0], empty(2, long), empty(2, long), empty(2)], {"epsilon": 1e-5}
    r = np.array([0.7, 1.3], np.float32)
    backward = [x, gain[0], r, dy, z, empty(2, long), values("dg", long)]
    yield "rmsnorm_backward", backward, {"segment": 0}
    tall = [values(name, long, 3) for name in ("x", "dy", "z")]
    down = [tall[0], gain[0, :3].copy(), np.abs(values("r", long)), tall[1], tall[2], empty(long, 3), empty(3)]
    yield "rmsnorm_backward", down, {"segment": long // 3}

    cos, sin = (np.array(t) for t in host.rope_tables(range(0, long, max(1, long // 50)), 4, 10000.0))
    positions = ints(np.array([0, len(cos) - 1, 3]))
    for sign in (1, -1):
        yield "rope", [values("q", 3, 13), positions, cos, sin], {"heads": 3, "head_width": 4, "sign": sign}

    # Two windows, or one that is LONG; every row sees itself, some rows at the end of each see all before them.
    window = long if long == LONG else long // 2
    own = np.arange(long // window * window)
    start = ints(np.where(own % window >= window - 3, own // window * window, own))
    rows = len(own)
    shape = {"heads": 2, "kv_heads": 1, "window": window, "scale": 0.70710678}
    qkv = values("qkv", rows, 8)
    o, m, total = empty(rows, 4), empty(rows, 2), empty(rows, 2)
    yield "attention", [qkv, start, o, m, total], shape
    yield "attention_backward", [qkv, start, o, m, total, values("do", rows, 4), empty(rows, 8)], shape

    yield "swiglu", [values("ab", 1, 2 * long), empty(1, long)], {}
    yield "swiglu_backward", [values("ab", 1, 2 * long), values("dh", 1, long), empty(1, 2 * long)], {}
    target = ints(np.array([long - 2, -1, 0]))
    logits = values("logits", 3, long)
    yield "cross_entropy_loss", [logits, target, empty(3), empty(3)], {"z_loss": 1e-4}
    yield "cross_entropy", [logits.copy(), target, empty(3), empty(3)], {"z_loss": 1e-4}
    yield "sum_squares", [values("n", long), empty(-(-long // 16384))], {}
    scalars = np.array([0.01, 0.1, 0.95, 0.05, 0.999, 3e-4, 1.5, 1e-8], np.float32)
    moments = [values("p", long), values("g", long), values("m", long), np.abs(values("v", long))]
    yield "adamw", [*moments, scalars], {}

    for name in ("silu", "gelu", "gelu_tanh"):
        yield name, [values("x", long), empty(long)], {}
        yield f"{name}_backward", [values("x", long), values("dy", long), empty(long)], {}
    yield "mul", [values("a", long), values("b", long), empty(long)], {}
    yield "copy", [values("a", long), empty(long)], {}
    yield "add_bias", [values("A", 3, long), values("b", long), empty(3, long)], {}
    yield "bias_backward", [values("dy", long, 3), values("db", 3)], {"segment": long // 3}
    mean = np.array([0.1, -0.2], np.float32)
    yield "layernorm", [x, gain[0], empty(2, long), empty(2), empty(2)], {"epsilon": 1e-5}
    yield "layernorm_backward", [x, gain[0], mean, r, dy, z, empty(2, long), values("dg", long)], {"segment": 0}
    down = [
        tall[0],
        gain[0, :3].copy(),
        values("m", long),
        np.abs(values("r", long)),
        *tall[1:],
        empty(long, 3),
        empty(3),
    ]
    yield "layernorm_backward", down, {"segment": long // 3}
    places = np.array([[7, 0, 3], [-1, 1, 4]], np.int32)
    key = {"key0": 0x9E3779B9, "key1": 0xBB67AE85}
    yield "dropout", [values("x", 2, long), places, empty(2, long)], {"p": 0.1, "scale": 1.0 / 0.9, **key}


def run_cases(values: Callable[..., Array], long: int) -> list[Case]:
    """The cases as they are before they run, after the ones before them ran: some read what others wrote."""
    found = []
    for op, operands, attributes in cases(values, long):
        made = {id(array): array.copy() for array in operands}
        found.append((op, [made[id(array)] for array in operands], attributes))
        call(op, *operands, **attributes)
    return found


def program_of_case(case: Case) -> tuple[Any, dict[str, Array]]:
    """A program of one call and the arrays to run it on; an operand given twice is one buffer."""
    op, operands, attributes = case
    builder = ProgramBuilder()
    buffers: dict[int, Buffer] = {}
    arrays: dict[str, Array] = {}
    for spec, array in zip(OPERATORS[op].operands, operands, strict=True):
        if id(array) not in buffers:
            kind: Any = {"in": "input", "out": "output"}.get(spec.direction, "inout")
            dtype: Any = spec.dtype
            buffers[id(array)] = builder.buffer(spec.name, array.shape, dtype, kind)
            arrays[spec.name] = array
    builder.call(op, *(buffers[id(array)] for array in operands), **attributes)
    return builder.build(), arrays


def operators() -> TraceFile:
    """Every operator with a long sum over normal numbers, and with a short one over awkward numbers."""
    recorder = Recorder()
    for values, long in ((normal, LONG), (awkward, 1101)):
        for case in cases(values, long):
            program, arrays = program_of_case(case)
            recorder.executor(program, 2).run(arrays)
    return recorder.finish()
