"""How values are written on pages: numbers, floats with their exact bits, sizes, durations, hashes.

A float is signed as the hex of its bits; its decimal is made here, for reading only.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from markupsafe import Markup

from .. import jcs

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def integer(value: int | None) -> str:
    """1234567 -> "1,234,567"; an absent one is a dash."""
    return "–" if value is None else f"{value:,}"


def real(value: float | None, digits: int = 4) -> str:
    """A loss or a rate for reading, `digits` after the point where that says something."""
    if value is None or math.isnan(value):
        return "–" if value is None else "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 10.0**-digits <= abs(value) < 1e6:
        return f"{value:.{digits}e}"
    return f"{value:,.{digits}f}"


def signed_real(value: float | None, bits: str | None, digits: int = 4) -> str:
    """A REAL column and its signed bits: SQLite has no NaN, so an absent value with bits is one."""
    return real(math.nan if value is None and bits else value, digits)


def bits_decimal(bits: str) -> str:
    """The shortest decimal that has exactly these f32 (8 digits) or f64 (16 digits) bits."""
    if len(bits) == 16:
        return repr(jcs.f64_from_hex(bits))
    value = jcs.f32_from_hex(bits)
    if not math.isfinite(value):
        return repr(value)
    # Nine digits are enough for every binary32 number.
    for precision in range(1, 10):
        text = f"{value:.{precision}g}"
        if _f32_bits(float(text)) == bits:
            return repr(float(text))
    return repr(value)


def _f32_bits(value: float) -> str:
    """The bits of the nearest binary32 number; nothing where that overflows."""
    try:
        return struct.pack(">f", value).hex()
    except OverflowError:
        return ""


def size(count: int | None) -> str:
    """A number of bytes in binary units."""
    if count is None:
        return "–"
    scaled, unit = float(count), 0
    while scaled >= 1024 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    return f"{count:,} bytes" if unit == 0 else f"{scaled:,.1f} {_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """Seconds for reading: 0.21 s, 14 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def moment(text: str | None) -> Markup:
    """An RFC 3339 UTC time of the ledger."""
    if text is None:
        return Markup("–")
    shown = text.replace("T", " ").removesuffix("Z")
    return Markup('<time datetime="{}" title="UTC">{}</time>').format(text, shown)


def short(digest: str, digits: int = 12) -> str:
    """The first digits of a hash; the whole one stands nearby or in the title."""
    return digest if len(digest) <= digits else digest[:digits] + "…"


def percent(part: float, whole: float) -> str:
    """A share without false precision: 0%, <1%, 37%, >99%, 100%."""
    if whole <= 0:
        return "–"
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1%"
    if 99 < share < 100:
        return ">99%"
    return f"{share:.0f}%"


def plural(count: int, one: str, many: str | None = None) -> str:
    """1 step, 2 steps."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


FILTERS: dict[str, Any] = {
    "integer": integer,
    "real": real,
    "signed_real": signed_real,
    "decimal": bits_decimal,
    "size": size,
    "duration": duration,
    "moment": moment,
    "short": short,
    "percent": percent,
    "plural": plural,
}
