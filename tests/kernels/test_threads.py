"""Threads divide outputs, never sums: any number of them, beside other thread pools and across a fork."""

import os
import threading

import numpy as np
import pytest
import torch

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import Executor, ProgramBuilder

ROWS, WIDTH, HIDDEN, HEADS, WINDOW = 96, 64, 200, 4, 48


def layer():
    """A layer's worth of operators that meet at barriers, with tasks of very different size."""
    b = ProgramBuilder()
    x, w1 = b.buffer("x", (ROWS, WIDTH), kind="input"), b.buffer("w1", (3 * WIDTH, WIDTH), kind="input")
    w2, w3 = b.buffer("w2", (2 * HIDDEN, WIDTH), kind="input"), b.buffer("w3", (WIDTH, HIDDEN), kind="input")
    gain, start = b.buffer("g", (WIDTH,), kind="input"), b.buffer("start", (ROWS,), "I32", "input")
    y, out = b.buffer("y", (ROWS, WIDTH)), b.buffer("out", (ROWS, WIDTH), kind="output")
    qkv, o, h = b.buffer("qkv", (ROWS, 3 * WIDTH)), b.buffer("o", (ROWS, WIDTH)), b.buffer("h", (ROWS, WIDTH))
    r, m, total = b.buffer("r", (ROWS,)), b.buffer("m", (ROWS, HEADS)), b.buffer("l", (ROWS, HEADS))
    ab, s = b.buffer("ab", (ROWS, 2 * HIDDEN)), b.buffer("s", (ROWS, HIDDEN))
    b.call("rmsnorm", x, gain, y, r, epsilon=1e-5)
    b.call("matmul_nt", y, w1, qkv, accumulate=0)
    b.call("attention", qkv, start, o, m, total, heads=HEADS, kv_heads=HEADS, scale=0.25, window=WINDOW)
    b.call("add_rmsnorm", x, o, gain, h, y, r, epsilon=1e-5)
    b.call("matmul_nt", y, w2, ab, accumulate=0)
    b.call("swiglu", ab, s)
    b.call("matmul_nt", s, w3, out, accumulate=0)
    dw = b.buffer("dw", (WIDTH, HIDDEN), kind="inout")
    b.call("matmul_tn", out, s, dw, accumulate=1, segment=WINDOW)
    return b.build()


def arrays(program, seed=0):
    rng = np.random.default_rng(seed)
    made = {b.name: rng.standard_normal(b.shape).astype(np.float32) for b in program.external if b.dtype == "F32"}
    return {**made, "start": np.arange(ROWS, dtype=np.int32) // WINDOW * WINDOW}


def run(threads, seed=0):
    program = layer()
    bound = arrays(program, seed)
    Executor(program, threads).run(bound)
    return bound["out"].tobytes() + bound["dw"].tobytes()


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 16])
def test_same_bits_at_any_number_of_threads(threads):
    assert run(threads) == run(1)


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_impossible_numbers_of_threads(threads):
    with pytest.raises(KernelError, match="threads must be 1 to 256"):
        Executor(layer(), threads)


def test_runs_from_several_python_threads_do_not_meet():
    expected = {seed: run(1, seed) for seed in range(4)}
    wrong = []

    def work(seed):
        wrong.extend(seed for _ in range(10) if run(3, seed) != expected[seed])

    workers = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_one_executor_from_several_python_threads():
    """One run at a time: the arena is one."""
    program = layer()
    executor = Executor(program, 2)
    bound = [arrays(program) for _ in range(4)]
    workers = [threading.Thread(target=executor.run, args=(b,)) for b in bound]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len({b["out"].tobytes() + b["dw"].tobytes() for b in bound}) == 1


def test_beside_torch():
    expected, a = run(2), torch.randn(300, 300)
    for _ in range(5):
        torch.mm(a, a)
        assert run(2) == expected


def test_after_a_fork():
    """The child has none of the parent's threads: it makes its own."""
    expected = run(3)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if run(3) == expected else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(3) == expected
