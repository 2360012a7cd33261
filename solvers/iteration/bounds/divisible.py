"""The best makespan of work that can be divided at will: a bound for every plan, and its prices.

Let F and C be the compute of all forward and all backward nodes on the fastest kind of device. For
a number of stages P, and any set of paths (equation 1 of `formulations.iteration.line`),

    minimise T   s.t.  T ≥ Σ_s n_πsF f_s + (n_πsB + (1 − ω) n_πsI + ω n_πsW) c_s   for each path π
                       Σ_s f_s = F,  Σ_s c_s = C,  f, c ≥ 0

is below the makespan of every plan with P stages. Paths are added until the makespan of the
solution, executed, is its T. The duals of the path rows, which add up to 1, price actions: with
α = Σ_π y_π n_π, every plan has a makespan of at least Σ_s α_s · (its durations).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Floats
from ..chain import Chain
from .paths_lp import mix
from .stage_paths import per_pass

#: Paths added at most, and how close bound and makespan must be.
ROUNDS, CLOSE = 60, 1e-4


@dataclass(frozen=True, eq=False)
class Divided:
    """A bound for all plans with P stages, and the prices that prove it.

    Parameters
    ----------
    bound
        Σ_s of the cheapest price times the work.
    prices
        Shape (P, 4): what a unit of time of each action counts.
    """

    bound: float
    prices: Floats


def divide(chain: Chain, forward: float, compute: float) -> Divided:
    """Return the bound for so much forward and backward work."""
    stages = chain.order.stages
    share = np.full((2, stages), 1 / stages)
    paths: list[Floats] = []
    best = Divided(-np.inf, np.zeros((stages, 4)))
    for _ in range(ROUNDS):
        f, c = forward * share[0], compute * share[1]
        makespan, counts = chain.longest_path(chain.durations(f, c, c))
        if makespan <= 0:
            return Divided(0.0, counts)
        paths.append(counts)
        rows = np.array([np.concatenate(per_pass(one, chain.share)) for one in paths])
        rows *= np.repeat([forward, compute], stages) / makespan
        mixed = mix(rows, np.repeat(np.eye(2), stages, axis=1))
        prices = np.tensordot(mixed.weights, np.array(paths), axes=1)
        ahead, back = per_pass(prices, chain.share)
        bound = float(forward * ahead.min() + compute * back.min())
        if bound > best.bound:
            best = Divided(bound, prices)
        if best.bound >= makespan * (1 - CLOSE):
            break
        share = mixed.solution.reshape(2, stages)
    return best
