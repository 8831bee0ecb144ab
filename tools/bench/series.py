"""Series with what training curves have, and one planted event each: to judge detectors.

A loss falls from its warm-up, drifts with autocorrelated noise, drops where the learning rate does, pauses for
evaluations (steps are missing), and starts again from a checkpoint (steps come twice). A throughput is level, with
noise. Everything follows from the seed.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field


@dataclass
class Series:
    """Values in the order in which they are logged, and where the event lies."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    onset: int | None = None  # position, not step; None: no event
    end: int | None = None  # position behind the last value of the event
    factor: float = 1.0

    def __len__(self) -> int:
        return len(self.values)


def loss(seed: int, *, factor: float = 1.0, length: int = 1500) -> Series:
    """A loss or a gradient norm; `factor`: height of the planted spike over the baseline, 1 for none."""
    chance = random.Random(seed)
    noise = chance.uniform(0.002, 0.05)
    memory = chance.choice((0.0, 0.5, 0.9))
    has_tails = chance.random() < 0.5
    floor = chance.uniform(0.5, 3.0)
    tau = chance.uniform(30, 300)
    drift = chance.uniform(-0.2, 0.1) / length
    drops = sorted(chance.sample(range(200, length), chance.randint(0, 2)))
    restart = chance.randrange(300, length) if chance.random() < 0.5 else None
    every = chance.choice((0, 100, 250))
    made = Series(factor=factor)
    if factor > 1:
        made.onset = chance.randrange(150, length - 100)
        made.end = made.onset + chance.randint(1, 40)
    state, level, step = 0.0, 1.0, 0
    for at in range(length):
        if at in drops:
            level *= chance.uniform(0.7, 0.95)
        if at == restart:
            step -= chance.randint(1, 100)
        if every and at % every == every - 1:
            step += chance.randint(1, 20)  # an evaluation took these
        state = memory * state + math.sqrt(1 - memory**2) * noise * _unit_noise(chance, has_tails=has_tails)
        value = floor * level * (1 + 3 * math.exp(-at / tau) + drift * at) * math.exp(state)
        if made.onset is not None and made.end is not None and made.onset <= at < made.end:
            # it rises at once or over some steps, and falls as it likes; the planted height is reached once
            peak = made.onset + (made.end - made.onset) // 3
            share = 1.0 if at == peak else chance.uniform(0.4, 1.0)
            value *= 1 + (factor - 1) * share
        made.steps.append(step)
        made.values.append(value)
        step += 1
    return made


def _unit_noise(chance: random.Random, *, has_tails: bool) -> float:
    """Return normal noise, or that of Student's t with 5 degrees of freedom, of variance 1."""
    normal = chance.gauss(0, 1)
    if not has_tails:
        return normal
    return normal * math.sqrt(3 / (chance.gammavariate(2.5, 2.0)))


def level(seed: int, *, change: float = 0.0, noise: float = 0.01, length: int = 600) -> Series:
    """A throughput; `change`: of the level, from a random position on, 0 for none."""
    chance = random.Random(seed)
    made = Series(factor=1 + change)
    if change:
        made.onset = chance.randrange(100, length - 60)
    for at in range(length):
        here = 1 + change if made.onset is not None and at >= made.onset else 1.0
        made.steps.append(at)
        made.values.append(149.0 * here * (1 + chance.gauss(0, noise)))
    return made
