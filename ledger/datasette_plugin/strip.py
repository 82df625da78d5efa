"""The coverage strip of a run: which steps were replayed, with which outcome, and where states are stored.

Only `match` covers a step; a mismatch is never hidden by another audit's match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .chart import LEFT, RIGHT, WIDTH, Scale, step_scale

HEIGHT = 30
_BAR_TOP, _BAR_HEIGHT = 12, 12
MAX_MARKS = 60
# Later ones are painted over earlier ones.
_ORDER = ("inconclusive", "redacted", "unavailable", "match", "mismatch")


@dataclass(frozen=True)
class Unit:
    """Steps `first` … `last` as one audit found them. Step 0 is the initial state."""

    first: int
    last: int
    outcome: str
    href: str


def covered(units: Iterable[Unit], start: int, last: int) -> int:
    """How many of the steps `start` + 1 … `last` some audit replayed and found to match."""
    total, reached = 0, start
    for first, end in sorted((unit.first, unit.last) for unit in units if unit.outcome == "match"):
        low, high = max(first, reached + 1), min(end, last)
        if high >= low:
            total += high - low + 1
            reached = high
    return total


def coverage_strip(
    units: Sequence[Unit], states: Sequence[int], *, start: int, last: int, below_chart: bool = False
) -> Markup:
    """Bars for the units of a run that goes from the state after step `start` to that after `last`.

    Small marks above stand for stored states. `below_chart` keeps the margins of the loss chart.
    """
    margins = (LEFT, RIGHT) if below_chart else (4, 4)
    x = step_scale(start, last, *margins)
    found = covered(units, start, last)
    label = f"{found:,} of {last - start:,} steps were replayed and match"
    parts = [
        Markup('<rect class="track" x="{}" y="{}" width="{}" height="{}" rx="2"/>').format(
            x.start, _BAR_TOP, x.end - x.start, _BAR_HEIGHT
        )
    ]
    # A unit of steps f … l is drawn from the state before f to the state after l, and never narrower than a hair.
    for unit in sorted(units, key=lambda unit: _ORDER.index(unit.outcome) if unit.outcome in _ORDER else 0):
        left, right = x(max(unit.first - 1, start)), x(min(max(unit.last, start), last))
        width = max(right - left, 3.0)
        left = min(left, x.end - width)
        where = "the initial state" if unit.last == 0 else _steps(unit)
        parts.append(
            Markup(
                '<a href="{}"><rect class="unit {}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
                "<title>{}: {}</title></a>"
            ).format(unit.href, unit.outcome, left, _BAR_TOP, width, _BAR_HEIGHT, where, unit.outcome)
        )
    parts += _states(states, x)
    return Markup('<svg class="strip" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )


def _states(states: Sequence[int], x: Scale) -> list[Markup]:
    """A mark for each stored state; where they would touch, thin lines, one for each pixel at most."""
    crowded = len(states) > MAX_MARKS
    shape = Markup('<path class="state" d="M{:.1f},{}l-3.5,-7h7z"><title>state stored after step {}</title></path>')
    if crowded:
        shape = Markup('<path class="state line" d="M{:.1f},{}v-5"><title>state stored after step {}</title></path>')
        states = list({round(x(step)): step for step in states}.values())
    return [shape.format(x(step), _BAR_TOP - 1, step) for step in states]


def _steps(unit: Unit) -> str:
    return f"step {unit.first}" if unit.first == unit.last else f"steps {unit.first}–{unit.last}"
