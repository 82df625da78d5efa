"""JSON as others write it, in no canonical form (RFC 8259): each key once, finite numbers, no deep nesting."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from . import jcs
from .errors import JsonError


def parse(data: bytes) -> Any:
    """The value of JSON bytes, UTF-8. Raises JsonError; how many bytes there may be is the caller's to limit.

    A key that stands twice in one object is refused, since readers differ in which of its values counts, and so are
    NaN and infinities, which are no JSON.
    """
    if jcs.nests_deeper(data, jcs.MAX_DEPTH):
        raise JsonError(f"nested deeper than {jcs.MAX_DEPTH}")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=jcs.keys_once, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError):
        raise JsonError("not JSON") from None


def _refuse(constant: str) -> NoReturn:
    raise JsonError(f"it holds {constant}, which is no JSON")
