"""Sizes as people write them."""

from __future__ import annotations

import pytest

from bitwitness.ledger.files.sizes import SizeRefused, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("7", 7), ("500MB", 500_000_000), ("5GB", 5_000_000_000), ("1kb", 1000), ("4M", 4 << 20)),
        *(("1k", 1024), ("5G", 5 << 30), ("5GiB", 5 << 30), ("2mib", 2 << 20), (" 64K ", 65536), ("3T", 3 << 40)),
    ],
)
def test_sizes_are_read_as_hubs_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "M", "GB", "-1", "1 GB", "1.5M", "4X", "1e9", "5iB", "5iG", "9" * 20])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SizeRefused, match="500MB"):
        parse_size(text)
