"""A small line chart as SVG, for results that go into the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 60, 20, 20, 40
COLOURS = ("#1f6feb", "#d1662f", "#3f8f5f", "#8f5fbf")


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> str:
    """Each line as (x, y) points, on common axes; the second and later ones dashed, so that one shows on another."""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    x_low, x_high, y_low, y_high = min(xs), max(xs) or 1, min(ys), max(ys)

    def place(x: float, y: float) -> str:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        down = TOP + (y_high - y) / ((y_high - y_low) or 1.0) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>',
        f'<text x="{LEFT}" y="14">{y_label}</text>',
    ]
    for fraction in range(5):
        y = y_low + (y_high - y_low) * fraction / 4
        x = x_low + (x_high - x_low) * fraction / 4
        down = place(x_low, y).split(",")[1]
        across = place(x, y_low).split(",")[0]
        parts.append(f'<text x="{LEFT - 6}" y="{down}" text-anchor="end">{y:.2f}</text>')
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour, dash = COLOURS[number % len(COLOURS)], ' stroke-dasharray="6 4"' if number else ""
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{WIDTH - RIGHT - 60}" y="{TOP + 16 * (number + 1)}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])
