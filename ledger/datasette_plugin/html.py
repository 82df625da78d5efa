"""Pages from templates: an environment of our own, so that no other plugin's template can change what is shown.

Everything is escaped unless it is Markup made by the drawing modules; a name that a template does not get is an
error, not an empty string.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import display, json_view

_FOLDER = Path(__file__).resolve().parent
STYLE_SHEET = _FOLDER / "static" / "bitwitness.css"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates" / "bitwitness"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(display.FILTERS)
    environment.globals["json_view"] = json_view.render
    return environment


@functools.cache
def style_version() -> str:
    """Changes with the style sheet, so that browsers may keep it for ever."""
    return hashlib.sha256(STYLE_SHEET.read_bytes()).hexdigest()[:12]


def render(template: str, context: dict[str, Any]) -> str:
    """The HTML of one page."""
    return _environment().get_template(template).render(context)
