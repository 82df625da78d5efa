"""Sizes of the built-in model. The `open-1b` shape is that of Gensyn's OPEN-1B."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # about 1M parameters: seconds per hundred steps on two cores
    "nano": {"layers": 5, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 384, "vocabulary": 272},
    # about 20M
    "small": {"layers": 7, "width": 512, "heads": 8, "kv_heads": 4, "hidden": 1408, "vocabulary": 272},
    # about 124M
    "base": {"layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "hidden": 2048, "vocabulary": 50304},
    # 1.61B
    "open-1b": {
        "layers": 24,
        "width": 2048,
        "heads": 16,
        "kv_heads": 4,
        "hidden": 5632,
        "vocabulary": 128256,
        "tied": False,
    },
}
