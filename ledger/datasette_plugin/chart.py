"""The loss chart of a run, drawn on the server: one SVG without script, colours from the style sheet.

The training loss is a line; where there are more steps than pixels, a band from the lowest to the highest loss
of each bucket stands behind the line of means, so that a spike never disappears. Held-out losses are marked
points that link to their records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .display import real

WIDTH, HEIGHT = 960, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 30, 14, 34
MAX_BUCKETS = 480
MAX_ZONES = 240
MAX_DOTS = 60
_HIGHEST = 1e30


@dataclass(frozen=True)
class Bucket:
    """The training loss of steps `first` … `last`; a bucket of one step has low = mean = high."""

    first: int
    last: int
    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Mark:
    """A held-out loss: the value after `step`, and where its record is."""

    step: int
    value: float
    href: str


@dataclass(frozen=True)
class Event:
    """Something that happened to the run after `step`, drawn as a dashed line: a resume, a halt."""

    step: int
    label: str


@dataclass(frozen=True)
class Scale:
    """A linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) * (self.end - self.start) / (self.high - self.low)


def step_scale(start: int, last: int, left: float = LEFT, right: float = RIGHT) -> Scale:
    """The horizontal scale of every drawing of a run: from the state after step `start` to that after `last`."""
    return Scale(start, max(last, start + 1), left, WIDTH - right)


def loss_chart(
    buckets: Sequence[Bucket],
    held_out: Sequence[tuple[str, Sequence[Mark]]],
    events: Iterable[Event],
    *,
    start: int,
    last: int,
    step_href: str,
) -> Markup:
    """The chart from the state after step `start` to that after `last`.

    `step_href` + a step number is the page of that step. Empty when there is nothing finite to draw.
    """
    values = [edge for bucket in buckets for edge in (bucket.low, bucket.high)]
    values += [mark.value for _name, marks in held_out for mark in marks]
    # Whoever trained signs any number; what no axis reaches is in the tables beside.
    values = [value for value in values if _is_drawn(value)]
    if not values:
        return Markup()
    x = step_scale(start, last)
    ticks = nice_ticks(min(values), max(values), 5)
    low, high = min(min(values), ticks[0]), max(max(values), ticks[-1])
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_axes(x, y, ticks)]
    parts += [_event(event, x) for event in events]
    parts += _training(buckets, x, y)
    parts += _zones(buckets, x, step_href)
    parts += [_held_out(name, marks, number, x, y) for number, (name, marks) in enumerate(held_out)]
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="chart-title chart-text">'
        '<title id="chart-title">Loss by step</title><desc id="chart-text">{}</desc>{}</svg>'
    ).format(WIDTH, HEIGHT, describe(buckets, held_out), Markup("").join(parts))


def _is_drawn(value: float) -> bool:
    return abs(value) <= _HIGHEST  # never so of a NaN


def describe(buckets: Sequence[Bucket], held_out: Sequence[tuple[str, Sequence[Mark]]]) -> str:
    """The chart in one or two sentences, for people who do not see it."""
    said = []
    if buckets:
        first, last = buckets[0], buckets[-1]
        said.append(
            f"Training loss goes from {real(first.mean)} at step {first.first} "
            f"to {real(last.mean)} at step {last.last}."
        )
    for name, marks in held_out:
        if marks:
            said.append(
                f"Held-out loss on {name} goes from {real(marks[0].value)} after step {marks[0].step} "
                f"to {real(marks[-1].value)} after step {marks[-1].step}."
            )
    return " ".join(said)


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers that reach over [low, high]."""
    span = high - low or abs(high) or 1.0
    span = max(span, 1e-9 * max(abs(low), abs(high)), 1e-30)  # less, and neighbouring ticks would be one number
    raw = span / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    unit = next(m for m in (1, 2, 2.5, 5, 10) if raw <= m * magnitude) * magnitude
    start, end = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [number * unit for number in range(start, max(end, start + 1) + 1)]


def step_ticks(start: int, last: int, wanted: int = 8) -> list[int]:
    """Round step numbers in [start, last]."""
    ticks = nice_ticks(start, max(last, start + 1), wanted)
    unit = max(1, round(ticks[1] - ticks[0]))
    return list(range(-(-start // unit) * unit, last + 1, unit))


def _axes(x: Scale, y: Scale, ticks: Sequence[float]) -> Markup:
    spacing = ticks[1] - ticks[0]
    digits = max(0, -math.floor(math.log10(spacing) + 1e-9)) if spacing < 1 else 0
    if round(spacing, digits) != round(spacing, 10):  # steps of 0.25 or 2.5 need one more digit
        digits += 1
    rows = [
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="tick y" x="{}" y="{}">{}</text>'
        ).format(LEFT, WIDTH - RIGHT, _n(y(tick)), _n(y(tick)), LEFT - 8, _n(y(tick) + 4), f"{tick:.{digits}f}")
        for tick in ticks
    ]
    columns = [
        Markup('<text class="tick x" x="{}" y="{}">{}</text>').format(_n(x(tick)), HEIGHT - BOTTOM + 18, f"{tick:,}")
        for tick in step_ticks(int(x.low), int(x.high))
    ]
    return Markup("").join(rows + columns)


def _training(buckets: Sequence[Bucket], x: Scale, y: Scale) -> list[Markup]:
    finite = [b for b in buckets if _is_drawn(b.low) and _is_drawn(b.mean) and _is_drawn(b.high)]
    if not finite:
        return []
    parts = []
    if any(bucket.last > bucket.first for bucket in finite):
        upper = [(_middle(b), b.high) for b in finite]
        lower = [(_middle(b), b.low) for b in reversed(finite)]
        parts.append(Markup('<path class="band" d="{}Z"/>').format(_path(upper + lower, x, y)))
    if len(finite) == 1:
        only = finite[0]
        parts.append(
            Markup('<circle class="dot" cx="{}" cy="{}" r="3"/>').format(_n(x(_middle(only))), _n(y(only.mean)))
        )
    else:
        parts.append(Markup('<path class="line" d="{}"/>').format(_path([(_middle(b), b.mean) for b in finite], x, y)))
    return parts


def _zones(buckets: Sequence[Bucket], x: Scale, step_href: str) -> list[Markup]:
    """Invisible columns that say the loss when pointed at, and lead to the step's record."""
    stride = max(1, math.ceil(len(buckets) / MAX_ZONES))
    zones = []
    for number in range(0, len(buckets), stride):
        group = buckets[number : number + stride]
        first, last = group[0].first, group[-1].last
        left, right = x(first - 0.5), x(last + 0.5)
        where = f"step {first}" if first == last else f"steps {first}–{last}"
        mean = sum(bucket.mean for bucket in group) / len(group)
        zones.append(
            Markup(
                '<a class="zone" href="{}{}" tabindex="-1"><rect x="{}" y="{}" width="{}" height="{}"/>'
                "<title>{}: loss {}</title></a>"
            ).format(step_href, first, _n(left), TOP, _n(right - left), HEIGHT - TOP - BOTTOM, where, real(mean))
        )
    return zones


def _held_out(name: str, marks: Sequence[Mark], number: int, x: Scale, y: Scale) -> Markup:
    """A dashed line through the marks, and dots that lead to their records; of many marks only some have a dot."""
    finite = thinned([mark for mark in marks if _is_drawn(mark.value)], MAX_BUCKETS)
    series = number % 3 + 1
    points = [(float(mark.step), mark.value) for mark in finite]
    line = Markup('<path class="held series{}" d="{}"/>').format(series, _path(points, x, y)) if len(points) > 1 else ""
    dots = [
        Markup(
            '<a class="mark series{}" href="{}"><circle cx="{}" cy="{}" r="3.5"/>'
            "<title>{}, after step {}: {}</title></a>"
        ).format(series, mark.href, _n(x(mark.step)), _n(y(mark.value)), name, mark.step, real(mark.value))
        for mark in thinned(finite, MAX_DOTS)
    ]
    return Markup("").join([line, *dots])


def thinned(marks: Sequence[Mark], most: int) -> Sequence[Mark]:
    """At most `most` of the marks, evenly spaced, the first and the last among them."""
    if len(marks) <= most:
        return marks
    return [marks[round(number * (len(marks) - 1) / (most - 1))] for number in range(most)]


def _event(event: Event, x: Scale) -> Markup:
    at = _n(x(event.step))
    return Markup('<line class="event" x1="{}" x2="{}" y1="{}" y2="{}"><title>{}</title></line>').format(
        at, at, TOP, HEIGHT - BOTTOM, event.label
    )


def _middle(bucket: Bucket) -> float:
    return (bucket.first + bucket.last) / 2


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{_n(x(step))},{_n(y(value))}" for step, value in points)


def _n(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")
