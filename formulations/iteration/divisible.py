"""The best makespan of work that can be divided at will: a bound for every plan, and its prices.

Let F and C be the compute of all forward and all backward nodes on the fastest kind of device. For
a number of stages P, and any set of paths (equation 1 of `line`),

    minimise T   s.t.  T ≥ Σ_s n_πsF f_s + (n_πsB + (1 − ω) n_πsI + ω n_πsW) c_s   for each path π
                       Σ_s f_s = F,  Σ_s c_s = C,  f, c ≥ 0

is below the makespan of every plan with P stages. Paths are added until the makespan of the
solution, executed, is its T. The duals of the path rows, which add up to 1, price actions: with
α = Σ_π y_π n_π, every plan has a makespan of at least Σ_s α_s · (its durations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...instances import TrainingJob
from ...instances.common.arrays import Floats
from ..throughput.certificate import PROOF_MARGIN
from .chain import Chain
from .orders import order_of
from .paths_lp import mix

#: Origin of the bound.
ORIGIN = "work that can be divided at will"

#: Work of all other stages, where one has nearly all of it.
LIGHT = 1e-3

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


def divisible_bound(problem: TrainingJob, sizes: Sequence[int], work: Floats) -> float:
    """Return the least makespan of work divided at will: no chain of stages is faster.

    Parameters
    ----------
    sizes
        Numbers of stages that plans can have.
    work
        Forward and backward time of a microbatch, shape (2,), each unit on its fastest device.
    """
    forward, compute = work.tolist()
    least = np.inf
    for size in sorted(sizes, reverse=True):  # what is faster tends to come first
        devices = max(problem.devices_of(size)) + 1
        if problem.batch * (forward + compute) / devices < least:
            chain = Chain(order_of(problem, size, compute > 0), problem.weight_share)
            least = min(least, divide(chain, forward, compute, enough=least).bound)
    return least * (1 - PROOF_MARGIN)


def divide(chain: Chain, forward: float, compute: float, *, enough: float = np.inf) -> Divided:
    """Return the bound for so much forward and backward work; the first that is `enough`."""
    stages = chain.order.stages
    share = np.full((2, stages), 1 / stages)
    paths = [_staying(chain, s, forward, compute) for s in range(stages)]
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
        if best.bound >= min(enough, makespan * (1 - CLOSE)):
            break
        share = mixed.solution.reshape(2, stages)
    return best


def _staying(chain: Chain, s: int, forward: float, compute: float) -> Floats:
    """Return the longest path where stage s has nearly all of the work, shape (P, 4)."""
    share = np.full(chain.order.stages, LIGHT)
    share[s] = 1.0
    f, c = forward * share, compute * share
    return chain.longest_path(chain.durations(f, c, c))[1]


def per_pass(counts: Floats, share: float) -> tuple[Floats, Floats]:
    """Return what forward and backward compute of each stage count for, shapes (P,)."""
    return counts[:, 0], counts[:, 1] + (1 - share) * counts[:, 2] + share * counts[:, 3]
