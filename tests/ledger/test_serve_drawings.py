"""The drawings and displays of the pages, without a server: charts, coverage, proof paths, numbers, JSON."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.datasette_plugin import display, json_view, merkle_path
from bitwitness.ledger.datasette_plugin.chart import Bucket, Event, Mark, loss_chart, nice_ticks, step_ticks
from bitwitness.ledger.datasette_plugin.config_view import grouped
from bitwitness.ledger.datasette_plugin.links import Links
from bitwitness.ledger.datasette_plugin.strip import Unit, coverage_strip, covered
from bitwitness.ledger.errors import ProofError

HOSTILE = "<script>&\"'"


def one(step: int, loss: float) -> Bucket:
    return Bucket(step, step, loss, loss, loss)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 33, 64, 100])
def test_the_drawn_path_ends_at_the_root(size: int) -> None:
    leaves = [merkle.leaf_hash(str(number).encode()) for number in range(size)]
    for index in range(size):
        proof = merkle.inclusion_proof(index, leaves)
        rungs, root = merkle_path.climb(index, size, leaves[index], proof)
        assert root.hash == merkle.root(leaves)
        assert (root.low, root.high) == (0, size)
        assert all(rung.sibling_is_left == (rung.sibling.low < rung.node.low) for rung in rungs)
        assert all(rung.sibling.hash == given for rung, given in zip(rungs, proof, strict=True))
        if index in (0, size - 1):
            drawing = ElementTree.fromstring(str(merkle_path.draw(rungs, root)))
            assert drawing.get("role") == "img"
            assert root.hash.hex() in str(merkle_path.draw(rungs, root))


def test_a_proof_of_another_length_is_refused() -> None:
    leaves = [merkle.leaf_hash(b"x")] * 5
    with pytest.raises(ProofError):
        merkle_path.climb(0, 5, leaves[0], merkle.inclusion_proof(0, leaves)[:-1])


def test_a_wide_tree_stays_a_small_drawing() -> None:
    proof = [bytes([level]) * 32 for level in range(len(merkle.inclusion_ranges(12345, 10_000_000)))]
    rungs, root = merkle_path.climb(12345, 10_000_000, b"\0" * 32, proof)
    text = str(merkle_path.draw(rungs, root))
    assert len(text) < 20_000 and "entries 0–9,999,999" in text


def test_chart_is_sound_svg_with_text_for_those_who_do_not_see_it() -> None:
    buckets = [one(step, 5 - step / 40) for step in range(1, 121)]
    marks = [Mark(0, 5.5, "/entries/1"), Mark(120, 2.1, "/entries/9")]
    text = str(loss_chart(buckets, [(HOSTILE, marks)], [Event(60, HOSTILE)], start=0, last=120, step_href="/s/"))
    tree = ElementTree.fromstring(text)
    assert tree.get("role") == "img" and (tree.get("aria-labelledby") or "").split() == ["chart-title", "chart-text"]
    assert "4.9750 at step 1" in text and "2.1000 after step 120" in text
    assert '<a class="mark series1" href="/entries/9">' in text and 'href="/s/60"' in text
    assert "<script>" not in text


def test_chart_of_many_steps_keeps_its_spikes_and_stays_small() -> None:
    buckets = [
        Bucket(first, first + 416, 1.0, 1.5, 90.0 if first > 100_000 else 2.0) for first in range(1, 200_000, 417)
    ]
    text = str(loss_chart(buckets, [], [], start=0, last=200_000, step_href="/s/"))
    assert 'class="band"' in text and len(text) < 80_000
    assert text.count('class="zone"') <= 240
    assert ">100<" in text or ">90<" in text  # the axis reaches over the spike


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_chart_without_a_finite_value_is_empty(values: list[float]) -> None:
    buckets = [one(step, value) for step, value in enumerate(values, 1)]
    assert str(loss_chart(buckets, [], [], start=0, last=len(values), step_href="/s/")) == ""


def test_chart_with_one_step_or_equal_losses_is_drawn() -> None:
    assert "circle" in str(loss_chart([one(1, 2.0)], [], [], start=0, last=1, step_href="/s/"))
    flat = [one(step, 2.0) for step in range(1, 5)]
    ElementTree.fromstring(str(loss_chart(flat, [], [], start=0, last=4, step_href="/s/")))
    zero = [one(step, 0.0) for step in range(1, 5)]
    ElementTree.fromstring(str(loss_chart(zero, [], [], start=0, last=4, step_href="/s/")))
    broken = [one(1, 2.0), one(2, math.inf), one(3, 1.0)]
    text = str(loss_chart(broken, [], [], start=0, last=3, step_href="/s/"))
    assert "inf" not in text.replace("steps", "") and "nan" not in text


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1.82, 5.54), (2.1, 2.3), (-3, 4e9), (1e-9, 3e-9), (7, 7), (0, 0)])
def test_ticks_reach_over_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 5)
    assert ticks[0] <= low + 1e-9 * abs(low) and ticks[-1] >= high - 1e-9 * abs(high)
    assert 2 <= len(ticks) <= 9


def test_step_ticks_are_round_steps_of_the_run() -> None:
    assert step_ticks(0, 120)[:3] == [0, 20, 40]
    assert step_ticks(60, 68) == [60, 61, 62, 63, 64, 65, 66, 67, 68]
    assert step_ticks(0, 1) == [0, 1]
    assert step_ticks(5, 5) == [5]


def test_only_match_covers_and_overlaps_count_once() -> None:
    units = [
        Unit(0, 0, "match", "#"), Unit(1, 10, "match", "#"), Unit(5, 12, "match", "#"),
        Unit(20, 25, "unavailable", "#"), Unit(30, 99, "match", "#"),
    ]  # fmt: skip
    assert covered(units, 0, 40) == 12 + 11
    assert covered(units, 4, 40) == 8 + 11
    assert covered([], 0, 40) == 0


def test_strip_paints_a_mismatch_over_everything() -> None:
    units = [Unit(1, 9, "mismatch", "/audits/2"), Unit(1, 20, "match", "/audits/1"), Unit(0, 0, "redacted", "#")]
    text = str(coverage_strip(units, [10], start=0, last=20))
    ElementTree.fromstring(text)
    assert text.rindex("unit mismatch") > text.rindex("unit match") > text.rindex("unit redacted")
    assert "20 of 20 steps" in text and "state stored after step 10" in text
    ElementTree.fromstring(str(coverage_strip([Unit(0, 0, "match", "#")], [], start=0, last=0)))


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("3b449ba6", "0.003"), ("3f800000", "1.0"), ("3dcccccd", "0.1"), ("00000001", "1e-45"), ("7f800000", "inf"),
        ("7fc00000", "nan"), ("80000000", "-0.0"), ("7f7fffff", "3.4028235e+38"),
        (jcs.f64_hex(0.1), "0.1"), (jcs.f64_hex(1 / 3), "0.3333333333333333"), ("7ff8000000000000", "nan"),
    ],
)  # fmt: skip
def test_decimals_are_the_shortest_with_the_same_bits(bits: str, text: str) -> None:
    assert display.bits_decimal(bits) == text


def test_numbers_for_reading() -> None:
    assert display.real(1.84461) == "1.8446" and display.real(None) == "–" and display.real(math.nan) == "NaN"
    assert display.real(3e-9) == "3.0000e-09" and display.real(-math.inf) == "−∞" and display.real(0.0) == "0.0000"
    assert display.signed_real(None, "7ff8000000000000") == "NaN" and display.signed_real(None, None) == "–"
    assert display.size(812) == "812 bytes" and display.size(12_582_912) == "12.0 MiB" and display.size(None) == "–"
    assert display.duration(0.2104) == "0.21 s" and display.duration(200) == "3 min 20 s"
    assert display.duration(59.9) == "1 min 0 s" and display.duration(200_000) == "2 d 7 h"
    assert display.percent(0, 10) == "0%" and display.percent(1, 1000) == "<1%" and display.percent(999, 1000) == ">99%"
    assert display.percent(10, 10) == "100%" and display.percent(0, 0) == "–"
    assert display.plural(1, "entry", "entries") == "1 entry" and display.plural(2, "step") == "2 steps"
    assert display.short("0123456789abcdef") == "0123456789ab…" and display.short("0123") == "0123"


def test_json_is_escaped_and_links_only_what_names_a_record() -> None:
    digest = "ab" * 32
    value = {"run": digest, "signer": digest, "loss": jcs.f64_hex(2.5), HOSTILE: [HOSTILE, 1, True, {}, []],
             "config": {"run": digest, "rate": jcs.f64_hex(0.003)}, "weights": {"root": digest}}  # fmt: skip
    text = str(json_view.render(value, Links("/", "ledger")))
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert text.count("<a ") == 2 and f'href="/entries/{digest}"' in text and f'href="/keys/{digest}"' in text
    assert "> 2.5<" in text and "> 0.003<" in text


def test_config_is_grouped_and_its_floats_are_decimals() -> None:
    groups = dict(
        grouped({"a": {"b": {"c": jcs.f64_hex(0.5)}, "list": [1, jcs.f64_hex(2.0)], "none": []}, "flag": False})
    )
    assert [(item.name, item.value) for item in groups["a"]] == [("b.c", "0.5"), ("list", "1, 2.0"), ("none", "none")]
    assert groups[""][0].value == "no"


def test_addresses_are_quoted() -> None:
    links = Links("/base/", "ledger")
    assert links.run('a/b?c#d"<') == "/base/runs/a%2Fb%3Fc%23d%22%3C"
    assert links.proof(7) == "/base/entries/7.tlog-proof" and links.home == "/base/"


@pytest.mark.parametrize("low", [0.0, 5e-324, 1.0, 1e16, -1.7e308, math.inf, math.nan])
@pytest.mark.parametrize("high", [-0.0, math.nextafter(1.0, 2), 1e300, 1.7e308, -math.inf])
def test_whatever_losses_were_signed_are_drawn_or_left_out(low: float, high: float) -> None:
    buckets = [one(1, low), Bucket(2, 2**53 - 1, min(low, high), (low + high) / 2, max(low, high))]
    text = str(loss_chart(buckets, [("x", [Mark(1, high, "/")])], [], start=0, last=2**53 - 1, step_href="/s/"))
    assert not text or ElementTree.fromstring(text).get("role") == "img"
