"""The inner loop of annealing: boundaries of a chain of stages move, each chain is executed."""

from __future__ import annotations

import numpy as np

from ....formulations.job import chain_kernel
from ....instances.common.kernel import inner, kernel

execute = chain_kernel.execute


#: Longest paths that are kept, of chains that were too long.
PATHS = 32


#: Relative rounding error of a path's length.
ROUNDING = 1e-12


@kernel
def anneal(chain, times, lattice, actions, heat, jumps, draws, best):
    """Return the least makespan that random moves of boundaries meet, `inf` if no chain fits.

    `chain`, shape (P + 1,), holds the ideals that it passes and is changed; the best one is written
    to `best`. `heat` says by how much a chain may be slower, as part of its makespan, in the first
    and the last round; `jumps` is the part of the moves that replace a boundary by any other ideal;
    `draws`, shape (rounds, 5), are random numbers from 0 to 1.
    """
    stages = len(chain) - 1
    duration, trial = np.zeros((stages, 4)), np.zeros((stages, 4))
    end = np.zeros(len(actions.which))
    paths, known = np.zeros((PATHS, stages, 4)), 0
    devices = len(times.kind)
    moved = chain.copy()
    now = np.inf
    if devices_fit(chain, 0, devices, times, duration):
        now = execute(actions, 0.0, duration, end, paths[0])
    least = now
    best[:] = chain
    rounds = len(draws)
    for r in range(rounds):
        one = draws[r]
        first = 1 + int(one[0] * (stages - 1))
        last = first
        if one[1] < 0.4:
            last = min(first + int(one[1] * 10), stages - 1)
        steps = 1
        if one[2] < 0.4:
            steps = 2 + int(one[2] * 10)
        upwards = one[3] < 0.5
        choice = int(one[3] * 1_000_003)
        back = one[1] > 0.85  # then one unit takes the place of another
        moved[:] = chain
        for s in range(first, last + 1):
            for _ in range(1 if back else steps):
                moved[s] = neighbour(moved[s], upwards, choice, lattice)
                choice = (choice * 31 + 17) % 1_000_003
            if back:
                moved[s] = neighbour(moved[s], not upwards, choice, lattice)
        if one[2] > 1 - jumps:  # then a boundary becomes any ideal between those around it
            last = first
            moved[:] = chain
            between = chain[first + 1] - chain[first - 1] - 1
            moved[first] = chain[first - 1] + 1 + choice % between
        if not ascends(moved, first, last, lattice):
            continue
        trial[:] = duration
        touched = devices if now == np.inf else min(last - first + 2, devices)
        if not devices_fit(moved, first - 1, touched, times, trial):
            continue
        warm = heat[0] * (heat[1] / heat[0]) ** (r / rounds)
        most = np.inf
        if now < np.inf:
            most = now - np.log(one[4]) * warm * least
        if too_long(paths, known, trial, most * (1 + ROUNDING)):
            continue
        at = min(known, PATHS - 1)
        value = execute(actions, 0.0, trial, end, paths[at])
        if value > most:
            known = at + 1
            continue
        chain[:] = moved
        duration[:] = trial
        now = value
        if now < least:
            least = now
            best[:] = chain
    return least


@inner
def neighbour(ideal, upwards, choice, lattice):
    """Return an ideal with one unit more or less; the same if there is none."""
    starts = lattice.up_first if upwards else lattice.down_first
    low, high = starts[ideal], starts[ideal + 1]
    if high == low:
        return ideal
    at = low + choice % (high - low)
    return lattice.up[at] if upwards else lattice.down[at]


@inner
def ascends(chain, first, last, lattice):
    """Return whether the stages at some boundaries are not empty, and each ideal has the former."""
    for s in range(first, last + 2):
        below, above = chain[s - 1], chain[s]
        if below == above:
            return False
        for w in range(lattice.members.shape[1]):
            if lattice.members[below, w] & ~lattice.members[above, w]:
                return False
    return True


@inner
def too_long(paths, known, duration, most):
    """Return whether one of the first `known` paths shows that the makespan is above `most`.

    Such a path moves towards the front, as it is likely to show the same of the next chain.
    """
    for i in range(known):
        length = 0.0
        for s in range(len(duration)):
            for a in range(4):
                length += paths[i, s, a] * duration[s, a]
        if length > most:
            to = i // 2
            for s in range(len(duration)):
                for a in range(4):
                    paths[i, s, a], paths[to, s, a] = paths[to, s, a], paths[i, s, a]
            return True
    return False


@inner
def devices_fit(chain, start, count, times, duration):
    """Set the durations of the actions of `count` devices; return whether these fit into memory.

    They are those of the stages `start`, … A device pays once for forward data, in the first of its
    stages that has a pin of the net, and once for gradients, in the last; for none whose pins it
    all has. `duration` has shape (P, 4).
    """
    stages = len(chain) - 1
    devices = len(times.kind)
    chunks = stages // devices
    for i in range(count):
        d = (start + i) % devices
        k = times.kind[d]
        for c in range(chunks):
            s = c * devices + d
            for p in range(2):
                duration[s, p] = times.work[k, p, chain[s + 1]] - times.work[k, p, chain[s]]
            duration[s, 3] = times.share * duration[s, 1]
            if devices > 1:
                for p in range(2):
                    crossed = times.crossing[k, p, chain[s]] + times.crossing[k, p, chain[s + 1]]
                    duration[s, p] += crossed
            duration[s, 2] = duration[s, 1] - duration[s, 3]
        for e in range(len(times.pins)):
            held, first, last = 0, -1, -1
            for c in range(chunks):
                s = c * devices + d
                own = times.held[chain[s + 1], e] - times.held[chain[s], e]
                if own > 0:
                    held += own
                    last = s
                    if first < 0:
                        first = s
            if 0 < held < times.pins[e]:
                duration[first, 0] += times.weight[k, 0, e]
                duration[last, 1] += times.weight[k, 1, e]
                duration[last, 2] += times.weight[k, 1, e]
        most = 0.0
        for v in range(times.in_flight.shape[1]):
            bytes_held = 0.0
            for c in range(chunks):
                s = c * devices + d
                grown = times.activation[chain[s + 1]] - times.activation[chain[s]]
                bytes_held += times.in_flight[d, v, c] * grown
            most = max(most, bytes_held)
        for c in range(chunks):
            s = c * devices + d
            most += times.resident[chain[s + 1]] - times.resident[chain[s]]
        if most > times.room[k]:
            return False
    return True
