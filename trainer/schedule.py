"""The learning rate of each update, in binary64 (docs/arithmetic.md, host scalars)."""

from __future__ import annotations

import math

from bitwitness.kernels import host

from .config import RunConfig


def learning_rate(config: RunConfig, update: int) -> float:
    """Return the learning rate of update 1, 2, … run.steps; later updates keep the last one.

    A linear warm-up over `schedule.warmup` updates comes first. `cosine` then falls to floor × the highest rate
    at run.steps; `wsd` stays (warm-up, stable, decay) and falls in a line over the last `schedule.decay` updates. All
    of that counts from `schedule.after`, where a run that goes on from another one has it.
    """
    highest, schedule, after = config.optimizer.learning_rate, config.schedule, config.schedule.after or 0
    steps = config.run.steps - after
    update = min(update - after, steps)
    if update <= schedule.warmup:
        return highest * float(update) / float(schedule.warmup)
    lowest = highest * schedule.floor
    if schedule.kind == "cosine":
        progress = float(update - schedule.warmup) / float(steps - schedule.warmup)
        return lowest + (highest - lowest) * (0.5 * (1.0 + host.cos(math.pi * progress)))
    if schedule.kind == "wsd" and schedule.decay:
        into_decay = update - (steps - schedule.decay)
        if into_decay > 0:
            return highest - (highest - lowest) * (float(into_decay) / float(schedule.decay))
    return highest
