"""Whether a configuration can fit this machine, told from its numbers before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from bitwitness.ledger.errors import BitwitnessError

from .config import RunConfig
from .models.programs import StepPrograms

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class NotEnoughMemory(BitwitnessError):
    """What a configuration needs at the least is more than this machine has. Both in bytes."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(
            f"the model needs at least {needed / 2**30:.1f} GiB of memory and this machine has "
            f"{available / 2**30:.1f} GiB: make it smaller, or set --windows-at-once"
        )
        self.needed, self.available = needed, available


def parameters(config: RunConfig) -> int:
    """The number of the model's parameters, as Layout has them."""
    m = config.decoder
    heads = (m.heads + 2 * m.kv_heads) * m.head_width
    layer = heads * m.width + m.heads * m.head_width * m.width + 3 * m.hidden * m.width + 2 * m.width
    return m.layers * layer + m.width + m.vocabulary * m.width * (1 if m.tied else 2)


def least_bytes(config: RunConfig, windows_at_once: int = 0) -> int:
    """A lower bound of what a step holds: weights, moments and a gradient, and what a forward pass keeps."""
    m, per_shard = config.decoder, config.data.windows_per_shard
    rows = min(windows_at_once or per_shard, per_shard) * config.data.window
    kept = 4 * m.width + (2 * m.heads + 2 * m.kv_heads) * m.head_width + 3 * m.hidden
    return 4 * (4 * parameters(config) + rows * (m.layers * kept + m.vocabulary))


def available_bytes() -> int:
    """The machine's memory, or less where a limit is set for this process's group."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such limit here, or "max"
        return total


def captured_bytes(config: RunConfig, captured: StepPrograms, windows_at_once: int = 0) -> int:
    """The same of a captured model: what its program was planned to hold, in the place of the decoder's formula."""
    per_shard = config.data.windows_per_shard
    return 16 * captured.layout.size + captured.shard(min(windows_at_once or per_shard, per_shard)).plan.size


def require_memory(
    config: RunConfig, windows_at_once: int = 0, captured: StepPrograms | None = None, *, ranks: int = 1
) -> None:
    """Raise NotEnoughMemory where even the least does not fit, for each of the `ranks` of this machine."""
    if captured is None:
        needed = least_bytes(config, windows_at_once)
    else:
        needed = captured_bytes(config, captured, windows_at_once)
    needed, available = needed * ranks, available_bytes()
    if needed > available:
        raise NotEnoughMemory(needed, available)
