"""The buffer plan: buffers that are alive together never share memory, whatever the program."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwitness.kernels import arena
from bitwitness.kernels.program import Executor, ProgramBuilder
from bitwitness.kernels.written import Ranges


@st.composite
def lifetimes(draw):
    found = {}
    for i in range(draw(st.integers(0, 40))):
        first = draw(st.integers(0, 30))
        found[f"b{i}"] = arena.Lifetime(draw(st.integers(1, 5000)), first, first + draw(st.integers(0, 10)))
    return found


@given(lifetimes())
def test_live_buffers_never_overlap(buffers):
    plan = arena.plan(buffers)
    placed = [(plan.offsets[name], plan.offsets[name] + b.size, b) for name, b in buffers.items()]
    for i, (begin, end, lifetime) in enumerate(placed):
        assert begin % arena.ALIGNMENT == 0 and begin >= 0 and end <= plan.size
        for other_begin, other_end, other in placed[:i]:
            assert not lifetime.meets(other) or end <= other_begin or other_end <= begin


@given(lifetimes())
def test_plan_depends_on_the_buffers_alone(buffers):
    backwards = dict(reversed(buffers.items()))
    assert arena.plan(buffers) == arena.plan(backwards)


def test_a_chain_needs_room_for_two():
    """x → t0 → t1 → …: only neighbours live together."""
    chain = {f"t{i}": arena.Lifetime(640, i, i + 1) for i in range(20)}
    assert arena.plan(chain).size == 2 * 640


def test_no_buffers():
    assert arena.plan({}) == arena.Plan({}, 0)


@settings(max_examples=60)
@given(st.data())
def test_random_programs_compute_what_they_say(data):
    """Programs of additions over temps of many lengths: a wrong plan would write over a value still needed."""
    builder = ProgramBuilder()
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values, arrays = [], {}
    for i in range(3):
        array = rng.standard_normal(64 << i).astype(np.float32)
        arrays[f"x{i}"] = array
        values.append((builder.buffer(f"x{i}", array.shape, kind="input"), array))
    for i in range(data.draw(st.integers(1, 30))):
        (a, a_value), (b, b_value) = (values[data.draw(st.integers(0, len(values) - 1))] for _ in range(2))
        n = data.draw(st.integers(1, min(a.size, b.size)))
        at = data.draw(st.integers(0, a.size - n))
        out = builder.buffer(f"t{i}", (n,), kind="temp")
        builder.call("add", builder.view(a, at, (n,)), builder.view(b, 0, (n,)), out)
        values.append((out, a_value[at : at + n] + b_value[:n]))
    expected = []
    for i, (buffer, value) in enumerate(values[-3:]):
        result = builder.buffer(f"y{i}", buffer.shape, kind="output")
        builder.call("add", buffer, buffer, result)
        arrays[f"y{i}"] = np.empty(buffer.shape, np.float32)
        expected.append(value + value)
    Executor(builder.build(), 2).run(arrays)
    for i, value in enumerate(expected):
        assert np.array_equal(arrays[f"y{i}"], value)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=15), st.integers(0, 40), st.integers(1, 10))
def test_written_ranges(added, begin, length):
    ranges, elements = Ranges(), set()
    for first, count in added:
        ranges.add(first, first + count)
        elements |= set(range(first, first + count))
    assert ranges.cover(begin, begin + length) == (set(range(begin, begin + length)) <= elements)
