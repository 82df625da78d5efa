"""Times as entries state them: RFC 3339 in UTC and whole seconds, `2026-01-02T03:04:05Z`."""

from __future__ import annotations

from datetime import UTC, datetime

_FORM = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    """This moment, by this machine's clock."""
    return text(datetime.now(UTC))


def text(moment: datetime) -> str:
    """A moment in UTC, its fraction of a second cut off."""
    return moment.strftime(_FORM)


def text_of_seconds(seconds: float) -> str:
    """Seconds since 1970, or a sentence with them where no calendar reaches."""
    try:
        return text(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return f"{seconds} seconds after 1970"


def parse(stated: str) -> datetime:
    """The moment that an entry states. Raises ValueError for another form."""
    return datetime.strptime(stated, _FORM).replace(tzinfo=UTC)
