"""Step programs: what is accepted, what is refused and how it is said, and that views and bindings do what they say."""

import json

import numpy as np
import pytest
import torch

from bitwitness.kernels.errors import KernelError, ShapeError
from bitwitness.kernels.ops import OPERATORS, arithmetic_digest
from bitwitness.kernels.program import Executor, ProgramBuilder, call


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# -- building ------------------------------------------------------------------------------------------------------


def test_stacked_weights_are_views():
    """q, k and v projections in one storage: three products over views equal one over the whole."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 8), (12, 8)))
    b = ProgramBuilder()
    xb, wb = b.buffer("x", (5, 8), kind="input"), b.buffer("w", (12 * 8,), kind="input")
    for i, name in enumerate("qkv"):
        out = b.buffer(name, (5, 4), kind="output")
        b.call("matmul_nt", xb, b.view(wb, i * 32, (4, 8)), out, accumulate=0)
    parts = {name: zeros(5, 4) for name in "qkv"}
    Executor(b.build(), 2).run({"x": x, "w": w.reshape(-1), **parts})
    whole = zeros(5, 12)
    call("matmul_nt", x, w, whole, accumulate=0)
    assert np.array_equal(np.concatenate(list(parts.values()), axis=1), whole)


def test_views_of_views():
    b = ProgramBuilder()
    whole = b.buffer("x", (10, 4), kind="inout")
    rows = b.view(whole, 8, (3, 4))
    assert b.view(rows, 4, (4,)).offset == 12
    with pytest.raises(ShapeError, match="beyond its 12"):
        b.view(rows, 9, (4,))
    with pytest.raises(ShapeError):
        b.view(whole, -1, (4,))


BUILD_ERRORS = {
    "unknown operator": ("no operator 'matmull'", lambda b, x, y: b.call("matmull", x, y)),
    "too few operands": ("add takes 3 operands, not 2", lambda b, x, y: b.call("add", x, y)),
    "missing attribute": ("fill takes the attributes value; got none", lambda b, x, y: b.call("fill", y)),
    "unknown attribute": ("got value, of", lambda b, x, y: b.call("fill", y, value=1.0, of=2)),
    "float for integer": (
        "accumulate must be an integer",
        lambda b, x, y: b.call("matmul_nn", x, x, y, accumulate=1.0),
    ),
    "flag of 2": ("accumulate must be 0 or 1, not 2", lambda b, x, y: b.call("matmul_nn", x, x, y, accumulate=2)),
    "NaN": ("value must be a finite float32 number", lambda b, x, y: b.call("fill", y, value=float("nan"))),
    "too large": ("does not fit a float32", lambda b, x, y: b.call("fill", y, value=1e39)),
    "writes an input": ("buffer x is an input", lambda b, x, y: b.call("fill", b.view(x, 0, (4,)), value=0.0)),
    "name taken": ("declared twice", lambda b, x, y: b.buffer("x", (1,))),
    "bad kind": ("kind must be one of", lambda b, x, y: b.buffer("z", (1,), kind="scratch")),
    "bad dtype": ("dtype must be F32, I32 or I16", lambda b, x, y: b.buffer("z", (1,), dtype="F64")),
    "partial overlap": (
        "operand y is written and overlaps operand a",
        lambda b, x, y: b.call("add", b.view(y, 0, (2,)), b.view(x, 0, (2,)), b.view(y, 1, (2,))),
    ),
    "aliasing not declared": (
        "operand C is written and overlaps operand B",
        lambda b, x, y: b.call("matmul_nn", x, y, y, accumulate=0),
    ),
    "another program's": (
        "belongs to another program",
        lambda b, x, y: b.call("add", ProgramBuilder().buffer("w", (2, 2)), x, y),
    ),
}


@pytest.mark.parametrize("case", BUILD_ERRORS)
def test_refused_while_building(case):
    message, act = BUILD_ERRORS[case]
    b = ProgramBuilder()
    x, y = b.buffer("x", (2, 2), kind="input"), b.buffer("y", (2, 2), kind="inout")
    with pytest.raises(KernelError) as caught:
        act(b, x, y)
    text = str(caught.value)
    assert message in text and "\n" not in text


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        ("matmul_nt", [(3, 4), (5, 6), (3, 5)], r"operand B has shape \[5,6\], expected \[N,K\] where K=4"),
        ("matmul_nn", [(3, 4), (4, 5), (5, 3)], r"operand C has shape \[5,3\], expected \[M,N\]"),
        ("rmsnorm", [(3, 4), (5,), (3, 4), (3,)], r"operand g has shape \[5\], expected \[D\] where D=4"),
        ("sum_squares", [(16385,), (1,)], r"operand y has shape \[1\], expected \[ceil\(n/16384\)\]"),
        ("swiglu", [(3, 5), (3, 2)], r"operand ab has shape \[3,5\], expected \[R,2\*F\]"),
        ("add", [(3, 4), (3, 4), (3, 4)], r"operand a has shape \[3,4\], expected \[n\]"),
    ],
)
def test_shapes_are_checked(op, shapes, message):
    b = ProgramBuilder()
    operands = [b.buffer(str(i), shape, kind="inout") for i, shape in enumerate(shapes)]
    attributes = {name: 1.0 if kind == "real" else 1 for name, kind in OPERATORS[op].attributes.items()}
    with pytest.raises(ShapeError, match=message):
        b.call(op, *operands, **attributes)


def test_rules_are_checked():
    b = ProgramBuilder()
    qkv, start = b.buffer("qkv", (6, 7 * 4), kind="input"), b.buffer("start", (6,), "I32", "input")
    o, m, total = (b.buffer(n, s, kind="output") for n, s in (("o", (6, 12)), ("m", (6, 3)), ("l", (6, 3))))
    o5, m5, total5 = (b.buffer(n, s, kind="output") for n, s in (("o5", (6, 20)), ("m5", (6, 5)), ("l5", (6, 5))))
    with pytest.raises(ShapeError, match="kv_heads = 2 must divide heads = 3"):
        b.call("attention", qkv, start, o, m, total, heads=3, kv_heads=2, scale=1.0, window=6)
    with pytest.raises(ShapeError, match="window = 4 must divide R = 6"):
        b.call("attention", qkv, start, o5, m5, total5, heads=5, kv_heads=1, scale=1.0, window=4)
    q, table = b.buffer("q", (6, 8), kind="inout"), b.buffer("table", (9, 2), kind="input")
    with pytest.raises(ShapeError, match=r"heads\*head_width = 12 must be at most S = 8"):
        b.call("rope", q, start, table, table, heads=3, head_width=4, sign=1)
    with pytest.raises(ShapeError, match="must be I32, but buffer table is F32"):
        b.call("embed", table, q, q)


def test_reading_before_writing_is_refused():
    b = ProgramBuilder()
    x, t, y = b.buffer("x", (4,), kind="input"), b.buffer("t", (4,)), b.buffer("y", (4,), kind="output")
    b.call("add", b.view(x, 0, (3,)), b.view(x, 1, (3,)), b.view(t, 0, (3,)))
    b.call("add", x, t, y)
    with pytest.raises(KernelError, match="call 1, add: operand b reads buffer t before it is written"):
        b.build()


def test_accumulating_reads_and_not_accumulating_does_not():
    def program(accumulate):
        b = ProgramBuilder()
        x, y = b.buffer("x", (2, 2), kind="input"), b.buffer("y", (2, 2), kind="output")
        b.call("matmul_nn", x, x, y, accumulate=accumulate)
        return b.build()

    program(0)
    with pytest.raises(KernelError, match="operand C reads buffer y before it is written"):
        program(1)


def test_outputs_are_written_whole():
    b = ProgramBuilder()
    y = b.buffer("y", (4,), kind="output")
    b.call("fill", b.view(y, 0, (3,)), value=1.0)
    with pytest.raises(KernelError, match="output buffer y is not written whole"):
        b.build()
    b.call("fill", b.view(y, 3, (1,)), value=1.0)
    b.build()


def test_json_holds_integers_and_strings_only():
    b = ProgramBuilder()
    x, t, y = b.buffer("x", (4,), kind="input"), b.buffer("t", (4,)), b.buffer("y", (2,), kind="output")
    b.call("fill", t, value=0.1)
    b.call("add", b.view(x, 2, (2,)), b.view(t, 0, (2,)), y)
    text = json.dumps(b.build().to_json(), sort_keys=True)
    assert json.loads(text, parse_float=lambda _: pytest.fail("a float in the program"))["calls"] == [
        {
            "op": "fill",
            "version": 1,
            "attributes": {"value": "3dcccccd"},
            "operands": [{"buffer": "t", "offset": 0, "shape": [4]}],
        },
        {
            "op": "add",
            "version": 1,
            "attributes": {},
            "operands": [
                {"buffer": "x", "offset": 2, "shape": [2]},
                {"buffer": "t", "offset": 0, "shape": [2]},
                {"buffer": "y", "offset": 0, "shape": [2]},
            ],
        },
    ]


# -- running -------------------------------------------------------------------------------------------------------


def adder():
    b = ProgramBuilder()
    x, y = b.buffer("x", (3, 4), kind="input"), b.buffer("y", (3, 4), kind="output")
    b.call("add", b.view(x, 0, (12,)), b.view(x, 0, (12,)), b.view(y, 0, (12,)))
    return Executor(b.build(), 2)


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("x", [np.ones((3, 4), np.float32), torch.ones(3, 4), read_only(np.ones((3, 4), np.float32))])
@pytest.mark.parametrize("y", [zeros(3, 4), torch.zeros(3, 4)])
def test_numpy_and_torch(x, y):
    adder().run({"x": x, "y": y})
    assert np.asarray(y).tolist() == [[2.0] * 4] * 3


RUN_ERRORS = {
    "missing": ("no array for buffer y", {"x": zeros(3, 4)}),
    "unknown": ("no buffer is named z", {"x": zeros(3, 4), "y": zeros(3, 4), "z": zeros(1)}),
    "misspelt": ("no array for buffer y; no buffer is named Y", {"x": zeros(3, 4), "Y": zeros(3, 4)}),
    "dtype": ("float32 [3,4]; got", {"x": zeros(3, 4, dtype=np.float64), "y": zeros(3, 4)}),
    "shape": ("shape (4, 3)", {"x": zeros(4, 3), "y": zeros(3, 4)}),
    "rank": ("buffer x needs", {"x": zeros(12), "y": zeros(3, 4)}),
    "strided": ("contiguous", {"x": zeros(4, 3).T, "y": zeros(3, 4)}),
    "strided torch": ("contiguous", {"x": torch.zeros(4, 3).t(), "y": zeros(3, 4)}),
    "read-only output": ("writable", {"x": zeros(3, 4), "y": read_only(zeros(3, 4))}),
    "not an array": ("got <class 'list'>", {"x": [1.0], "y": zeros(3, 4)}),
}


@pytest.mark.parametrize("case", RUN_ERRORS)
def test_refused_arrays(case):
    message, arrays = RUN_ERRORS[case]
    with pytest.raises(KernelError) as caught:
        adder().run(arrays)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_arrays_that_share_memory():
    storage = zeros(20)
    with pytest.raises(KernelError, match="buffers x and y are bound to the same memory"):
        adder().run({"x": storage[:12].reshape(3, 4), "y": storage[8:].reshape(3, 4)})
    b = ProgramBuilder()
    x, z, y = (b.buffer(n, (4,), kind=k) for n, k in (("x", "input"), ("z", "input"), ("y", "output")))
    b.call("add", x, z, y)
    Executor(b.build(), 1).run({"x": storage[:4], "z": storage[2:6], "y": storage[6:10]})  # inputs may


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("embed", [[0, 9, 3], (5, 4), (3, 4)], {}, "ids[1] = 9 is outside 0 … 4"),
        ("embed_backward", [[0, 1, -1], (3, 4), (5, 4)], {}, "ids[2] = -1 is outside 0 … 4"),
        ("cross_entropy", [(2, 5), [0, 5], (2,), (2,)], {"z_loss": 0.0}, "target[1] = 5 is outside -1 … 4"),
        ("cross_entropy_loss", [(2, 5), [-2, 7], (2,), (2,)], {"z_loss": 0.0}, "target[0] = -2 is outside -1 … 4"),
        ("rope", [(2, 4), [0, 3], (3, 2), (3, 2)], {"heads": 1, "head_width": 4, "sign": 1}, "pos[1] = 3 is outside"),
        (
            "attention",
            [(4, 6), [0, 0, 1, 3], (4, 2), (4, 1), (4, 1)],
            {"heads": 1, "kv_heads": 1, "scale": 1.0, "window": 2},
            "start[2] = 1 is outside 2 … 2",
        ),
        (
            "attention_backward",
            [(4, 6), [0, 2, 2, 3], (4, 2), (4, 1), (4, 1), (4, 2), (4, 6)],
            {"heads": 1, "kv_heads": 1, "scale": 1.0, "window": 2},
            "start[1] = 2 is outside 0 … 1",
        ),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_indices_outside_their_range(op, operands, attributes, message, threads):
    arrays = [np.array(o, np.int32) if isinstance(o, list) else zeros(*o) for o in operands]
    with pytest.raises(KernelError) as caught:
        call(op, *arrays, threads=threads, **attributes)
    assert f"call 0, {op}: {message}" in str(caught.value)


def test_a_failed_call_ends_the_run_and_the_executor_lives():
    b = ProgramBuilder()
    ids, table, y = b.buffer("ids", (2,), "I32", "input"), b.buffer("t", (3, 4), kind="input"), b.buffer("e", (2, 4))
    out = b.buffer("y", (8,), kind="output")
    b.call("embed", ids, table, y)
    b.call("add", b.view(y, 0, (8,)), b.view(y, 0, (8,)), out)
    executor, result = Executor(b.build(), 2), zeros(8)
    bound = {"t": np.ones((3, 4), np.float32), "y": result}
    with pytest.raises(KernelError, match="ids"):
        executor.run({"ids": np.array([0, 3], np.int32), **bound})
    assert not result.any()
    executor.run({"ids": np.array([0, 2], np.int32), **bound})
    assert result.tolist() == [2.0] * 8


def test_timings_name_every_call():
    executor = adder()
    executor.run({"x": zeros(3, 4), "y": zeros(3, 4)})
    [(op, seconds)] = executor.timings()
    assert op == "add" and 0 < seconds < 10


def test_array_given_twice_is_one_operand_in_two_roles():
    a = np.arange(5, dtype=np.float32)
    call("add", a, a, a)
    assert a.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    with pytest.raises(KernelError, match="overlaps"):
        square = zeros(2, 2)
        call("matmul_nn", square, square, square, accumulate=0)


def test_digest_of_the_arithmetic():
    """Changing a declaration changes the arithmetic of every run: this line is changed only on purpose."""
    assert arithmetic_digest() == "847be65895bad144e7550e4a606066988b172a843361a1f5187dd4c659a57695"


def test_int16_buffers():
    """Two bytes an element: views, the arena and bindings count them as such."""
    rng = np.random.default_rng(0)
    x, zeros_i32 = rng.standard_normal((4, 300)).astype(np.float32), np.zeros(300, np.int32)
    b = ProgramBuilder()
    source, a = b.buffer("x", (4, 300), kind="input"), b.buffer("a", (300,), "I32", "input")
    q, s, e = b.buffer("q", (4, 384), "I16"), b.buffer("s", (4, 3)), b.buffer("e", (4,), "I32")
    out, kept = b.buffer("out", (2, 4), kind="output"), b.buffer("kept", (4, 384), "I16", "output")
    scales, rows = b.buffer("scales", (4, 3), kind="output"), b.buffer("rows", (4,), "I32", "output")
    b.call("bfp_rows", source, a, q, s, e, sign=1)
    b.call("bfp_rows", source, a, kept, scales, rows, sign=1)
    b.call("matmul_bfp", b.view(q, 2 * 384, (2, 384)), b.view(s, 6, (2, 3)), kept, scales, out, accumulate=0)
    program = b.build()
    assert program.plan.size == 4 * 384 * 2 + 64 + 64
    bound = {"x": x, "a": zeros_i32, "out": zeros(2, 4), "scales": zeros(4, 3), "rows": zeros(4, dtype=np.int32)}
    kept_array = zeros(4, 384, dtype=np.int16)
    Executor(program, 2).run({**bound, "kept": kept_array})
    whole = zeros(4, 4)
    call("matmul_bfp", kept_array, bound["scales"], kept_array, bound["scales"], whole, accumulate=0)
    assert bound["out"].tobytes() == whole[2:].tobytes()
    with pytest.raises(ShapeError, match="array of int16"):
        Executor(program, 1).run({**bound, "kept": zeros(4, 384, dtype=np.int32)})
