"""The inner loops of the dynamic program over ideals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....instances.model.arrays import Bools, Floats, Ints
from ....instances.model.kernel import inner, kernel

#: A sum that has fallen by this factor is added up again: what was subtracted has left its rounding
#: behind.
FALLEN = 1e3


class Steps(NamedTuple):
    """The lattice of N ideals of U units, as in `Lattice`."""

    members: NDArray[np.uint64]  # (N, words) bits
    start: Ints  # (N + 1,)
    unit: NDArray[np.int32]
    to: NDArray[np.int32]


class Table(NamedTuple):
    """What is known of R reachable ideals in S states."""

    row: Ints  # (N,) row of each ideal below; −1 for ideals out of reach
    value: Floats  # (R, S) least max-load, −1 where the state is out of reach
    origin: NDArray[np.int32]  # (R, S) the ideal that it came from, −1 for none
    by: NDArray[np.int8]  # (R, S) the kind of device that the last stage is on
    keep: Bools  # (R, S) whether to extend the plan


class Lanes(NamedTuple):
    """Rows of the statement by kind of device: L lanes, of which the first C pay for nets."""

    kind: Ints  # (L,)
    limit: Floats  # (L,)
    counts: Bools  # (L,) whether it counts for the max-load
    unit_weight: Floats  # (U, L)
    net_weight: Floats  # (E, C)


class Nets(NamedTuple):
    """Units of each of E nets, and nets of each unit, in compressed rows."""

    pin_start: Ints
    pin: Ints
    of_start: Ints
    of: Ints


class Stage(NamedTuple):
    """The stage that is being grown: D = U + 1 depths, K kinds."""

    held: Ints  # (E,) pins in the stage
    inside: Bools  # (E,) whether a pin is in the ideal
    fixed: Floats  # (D, L) load of units and of nets that are cut for good
    loose: Floats  # (D, C) load of the other nets that are cut
    most: Floats  # (D, C) the greatest `loose` since it was added up
    fits: Bools  # (K,) whether a device of the kind may still hold it
    load: Floats  # (K,)


@kernel
def windows(first, last, steps, weights, total, used, left, inside, alive):
    """Mark for ideals `first` … `last` − 1 the states that no plan within the limits can be in.

    Parameters
    ----------
    weights
        Shape (Q, U): weights of the units; `total` are their sums.
    used, left
        Shape (Q, S): the weight that the devices used in a state, and those left, can take.
    inside
        Shape (N, Q): weight of each ideal, filled in as far as ideals can be reached so far.
    alive
        Shape (N, S): set to False.
    """
    questions, states = used.shape
    for ideal in range(first, last):
        for step in range(steps.start[ideal], steps.start[ideal + 1]):
            for q in range(questions):
                inside[steps.to[step], q] = inside[ideal, q] + weights[q, steps.unit[step]]
        for s in range(states):
            for q in range(questions):
                weight = inside[ideal, q]
                if weight > used[q, s] or total[q] - weight > left[q, s]:
                    alive[ideal, s] = False
                    break


@kernel
def undominated(steps, table, state, stride, used, yields, incumbent, floor):
    """Mark in `keep` the ideals whose best plan in `state` must be extended; return how many.

    Not those where fewer devices do as well, nor those where a larger ideal does as well that
    differs by units which may leave any stage without adding to its load. All values of the
    state must be final. Values up to `floor` count as equal.

    Parameters
    ----------
    stride
        Shape (K,): what one more device of a kind adds to the number of a state.
    used
        Shape (K,): devices used in the state.
    yields
        Shape (U,): whether a unit may leave any stage whose first units it belongs to.
    """
    row, value, origin = table.row, table.value, table.origin
    size = len(steps.start) - 1
    beyond = np.full(size, np.inf)  # least value of the larger ideals, and of the ideal itself
    kept = 0
    for ideal in range(size - 1, -1, -1):
        for step in range(steps.start[ideal], steps.start[ideal + 1]):
            if yields[steps.unit[step]]:
                beyond[ideal] = min(beyond[ideal], beyond[steps.to[step]])
        mine = row[ideal]
        if mine < 0 or value[mine, state] < 0:
            continue
        needed = True
        for k in range(len(stride)):
            if used[k] > 0 and origin[mine, state - stride[k]] >= 0:
                fewer = value[mine, state - stride[k]]
                if fewer <= max(value[mine, state], floor):
                    needed = False
                if fewer < value[mine, state]:  # leave one device of the kind empty
                    value[mine, state] = fewer
                    origin[mine, state] = ideal
                    table.by[mine, state] = k
        if origin[mine, state] >= 0:
            here = value[mine, state]
            keep = needed and here < incumbent and beyond[ideal] > max(here, floor)
            table.keep[mine, state] = keep
            kept += keep
            beyond[ideal] = min(beyond[ideal], here)
    return kept


@kernel
def splits(steps, nets, net_weight, split):
    """Fill in, shape (N, C), the weight of the nets that each ideal splits.

    Parameters
    ----------
    net_weight
        Shape (E, C).
    """
    known = np.zeros(len(steps.members), np.bool_)
    most = np.zeros(split.shape)  # the greatest sum since it was added up
    held = np.zeros(len(net_weight), np.int64)
    none = np.zeros(len(net_weight), np.bool_)
    for ideal in range(len(steps.members)):
        for step in range(steps.start[ideal], steps.start[ideal + 1]):
            reached, v = steps.to[step], steps.unit[step]
            if known[reached]:
                continue
            known[reached] = True
            for n in range(split.shape[1]):
                split[reached, n] = split[ideal, n]
                most[reached, n] = most[ideal, n]
            for a in range(nets.of_start[v], nets.of_start[v + 1]):
                e = nets.of[a]
                inside = _pins_in(steps.members, nets, ideal, e)
                if inside == 0:
                    for n in range(split.shape[1]):
                        split[reached, n] += net_weight[e, n]
                        most[reached, n] = max(most[reached, n], split[reached, n])
                elif inside == nets.pin_start[e + 1] - nets.pin_start[e] - 1:
                    for n in range(split.shape[1]):
                        split[reached, n] -= net_weight[e, n]
            for n in range(split.shape[1]):
                if most[reached, n] > FALLEN * split[reached, n]:
                    for e in range(len(held)):
                        held[e] = _pins_in(steps.members, nets, reached, e)
                    split[reached, n] = _open(held, none, nets.pin_start, net_weight, n)
                    most[reached, n] = split[reached, n]


@inner
def _pins_in(members, nets, ideal, e):
    """Return how many pins of net e are in an ideal."""
    inside = 0
    for p in range(nets.pin_start[e], nets.pin_start[e + 1]):
        u = nets.pin[p]
        if members[ideal, u >> 6] >> np.uint64(u & 63) & np.uint64(1):
            inside += 1
    return inside


@inner
def _open(held, inside, pin_start, net_weight, n):
    """Return the weight in lane n of the nets not `inside` of which some pins are held."""
    total = 0.0
    for e in range(len(held)):
        if 0 < held[e] < pin_start[e + 1] - pin_start[e] and not inside[e]:
            total += net_weight[e, n]
    return total


@kernel
def relax(first, budget, steps, table, now, stride, may_use, lanes, nets, split):
    """Extend the plans of ideals `first`, … by one more stage; return the next ideal and the work.

    Stages S are grown from an ideal by adding units in increasing number, so that each is met
    once; its loads are kept up to date unit by unit. A net with a pin in the ideal is cut for
    good as soon as S has one; this part of a load and the time of the units only grow, and S is
    dropped as soon as they pass the limits on every kind.

    Parameters
    ----------
    budget
        Pairs of ideals after which to return.
    now
        States to extend.
    stride
        Shape (K,): what one more device of a kind adds to the number of a state.
    may_use
        Shape (S, K): whether a device of the kind is left.
    split
        Shape (N, C): what crosses the boundary behind each ideal, which the stages on both sides
        pay; there are no nets then. Of no rows if nothing is relayed.
    """
    units, charged = len(lanes.unit_weight), lanes.net_weight.shape[1]
    stage = Stage(
        np.zeros(len(lanes.net_weight), np.int64),
        np.zeros(len(lanes.net_weight), np.bool_),
        np.zeros((units + 1, len(lanes.kind))),
        np.zeros((units + 1, charged)),
        np.zeros((units + 1, charged)),
        np.zeros(len(stride), np.bool_),
        np.zeros(len(stride)),
    )
    node = np.zeros(units + 1, np.int64)
    at = np.zeros(units + 1, np.int64)
    added = np.full(units + 1, -1, np.int64)
    states = np.zeros(len(now), np.int64)
    pairs, ideal = 0, first
    while ideal < len(steps.start) - 1 and pairs < budget:
        many = _list_states(table, ideal, now, states)
        if many == 0:
            ideal += 1
            continue
        for e in range(len(stage.inside)):
            stage.inside[e] = _pins_in(steps.members, nets, ideal, e) > 0
        for n in range(charged if len(split) > 0 else 0):
            stage.fixed[0, n] = split[ideal, n]
        depth = 0
        node[0] = ideal
        at[0] = steps.start[ideal + 1] - 1
        while depth >= 0:
            step = at[depth]
            if step < steps.start[node[depth]] or steps.unit[step] <= added[depth]:
                if depth > 0:
                    _drop(stage, nets, added[depth])
                depth -= 1
                continue
            at[depth] = step - 1
            pairs += 1
            if not _add(stage, lanes, nets, depth, steps.unit[step]):
                continue
            reached = steps.to[step]
            depth += 1
            node[depth] = reached
            added[depth] = steps.unit[step]
            at[depth] = steps.start[reached + 1] - 1
            if table.row[reached] < 0:
                continue
            _weigh(stage, lanes, split, reached, depth)
            for k in range(len(stride)):
                for i in range(many if stage.fits[k] else 0):
                    if may_use[states[i], k]:
                        _improve(table, ideal, reached, states[i], k, stride[k], stage.load[k])
        ideal += 1
    return ideal, pairs


@inner
def _list_states(table, ideal, now, states):
    """List the states of `now` in which an ideal's plan is to be extended; return how many."""
    many, mine = 0, table.row[ideal]
    for s in now:
        if mine >= 0 and table.keep[mine, s]:
            states[many] = s
            many += 1
    return many


@inner
def _add(stage, lanes, nets, depth, v):
    """Add unit v to the stage of so many units, if a device of any kind may then still hold it."""
    deep = depth + 1
    for k in range(len(stage.fits)):
        stage.fits[k] = True
    for n in range(len(lanes.kind)):
        stage.fixed[deep, n] = stage.fixed[depth, n] + lanes.unit_weight[v, n]
        if stage.fixed[deep, n] > lanes.limit[n]:
            stage.fits[lanes.kind[n]] = False
    grows = False
    for k in range(len(stage.fits)):
        grows |= stage.fits[k]
    if not grows:
        return False
    charged = stage.loose.shape[1]
    for n in range(charged):
        stage.loose[deep, n] = stage.loose[depth, n]
        stage.most[deep, n] = stage.most[depth, n]
    for a in range(nets.of_start[v], nets.of_start[v + 1]):
        e = nets.of[a]
        stage.held[e] += 1
        if stage.held[e] == 1:
            for n in range(charged):
                if stage.inside[e]:
                    stage.fixed[deep, n] += lanes.net_weight[e, n]
                else:
                    stage.loose[deep, n] += lanes.net_weight[e, n]
                    stage.most[deep, n] = max(stage.most[deep, n], stage.loose[deep, n])
        elif stage.held[e] == nets.pin_start[e + 1] - nets.pin_start[e]:
            for n in range(charged):
                stage.loose[deep, n] -= lanes.net_weight[e, n]
    grows = False
    for n in range(charged):
        if stage.most[deep, n] > FALLEN * (stage.fixed[deep, n] + stage.loose[deep, n]):
            stage.loose[deep, n] = _open(
                stage.held, stage.inside, nets.pin_start, lanes.net_weight, n
            )
            stage.most[deep, n] = stage.loose[deep, n]
        if stage.fixed[deep, n] > lanes.limit[n]:
            stage.fits[lanes.kind[n]] = False
    for k in range(len(stage.fits)):
        grows |= stage.fits[k]
    if not grows:
        _drop(stage, nets, v)
    return grows


@inner
def _drop(stage, nets, v):
    """Take unit v, added last, out of the stage."""
    for a in range(nets.of_start[v], nets.of_start[v + 1]):
        stage.held[nets.of[a]] -= 1


@inner
def _weigh(stage, lanes, split, reached, depth):
    """Note the load of the stage up to the ideal `reached` on each kind, and which it fits."""
    for k in range(len(stage.load)):
        stage.load[k] = 0.0
    for n in range(len(lanes.kind)):
        full = stage.fixed[depth, n]
        if n < stage.loose.shape[1]:
            full += stage.loose[depth, n]
            if len(split) > 0:
                full += split[reached, n]
        k = lanes.kind[n]
        if full > lanes.limit[n]:
            stage.fits[k] = False
        elif lanes.counts[n] and full > stage.load[k]:
            stage.load[k] = full


@inner
def _improve(table, ideal, reached, state, k, stride, load):
    """Reach an ideal by a stage of that load on a device of kind k, if that is better."""
    mine, theirs, after = table.row[ideal], table.row[reached], state + stride
    worst = max(table.value[mine, state], load)
    if worst < table.value[theirs, after]:
        table.value[theirs, after] = worst
        table.origin[theirs, after] = ideal
        table.by[theirs, after] = k
