"""The inner loops that list pairs of stages of a device: states first, then pairs between them."""

from __future__ import annotations

import numpy as np

from ....instances.common.kernel import inner, kernel


@kernel
def list_pairs(meet, target, size, halves, nets, paths, prices, bytes_held, out):
    """List the pairs of stages of each device, for chains that pass the ideal `meet` half way.

    What a chain up to each state costs at least is found from the first device on, without listing
    pairs; then, from the last one back, what it costs from there on. Most pairs fall away between.

    Parameters
    ----------
    meet
        Where the first D stages end and the last D begin.
    target
        Pairs that no chain below the target has are left out.
    size
        N, the number of ideals.
    halves
        Two `Half`, of the stages below and above the meeting ideal.
    nets
        `Nets` that these share.
    paths
        Shape (D, paths, 2, 2): passes of a device's stages on paths that stay there.
    prices
        Shape (Q, 2D, 4).
    bytes_held
        Shape (D, V, 2), microbatches in flight, rows of 0 fill up; and the bytes that there are.
    out
        Rows to be filled in, shapes (T, 5), for the layer, the states, and the rows of both halves;
        and (T, 2, 2) for forward and backward time. The last layer comes first.

    Returns
    -------
    int
        Number of pairs; −1 if there are too many.
    """
    first, second = halves
    rows, times = out
    asked, devices = len(prices), len(paths)
    number = np.full(size * size, -1, np.int64)
    layers, state, spent = reach(
        meet, target, size, halves, nets, paths, prices, bytes_held, number
    )
    if len(state) == layers[devices]:
        return 0
    behind = np.full((len(state), asked), np.inf)
    place = np.full(len(state), -1, np.int64)
    behind[layers[devices]], place[layers[devices]] = 0.0, 0
    less, cost = np.zeros((2, 2)), np.zeros(asked)
    filled = 0
    for d in range(devices - 1, -1, -1):
        for s in range(layers[d + 1], layers[d + 2]):
            number[state[s, 0] * size + state[s, 1]] = s if place[s] >= 0 else -1
        live = 0
        for s in range(layers[d], layers[d + 1]):
            low, high = state[s]
            for a in range(first.begin[d, low], first.begin[d, low + 1]):
                room = target - first.path[a, 0] + first.spared[a]
                to = first.end[a] * size
                for b in range(second.begin[d, high], second.begin[d, high + 1]):
                    if second.path[b, 0] >= room:
                        break
                    following = number[to + second.end[b]]
                    if following < 0:
                        continue
                    spare(a, b, nets, less)
                    if not below(a, b, target, halves, paths[d], less):
                        continue
                    least = -np.inf
                    for q in range(asked):
                        cost[q] = first.cost[a, q] + second.cost[b, q]
                        cost[q] -= worth(d, devices, prices[q], less)
                        cost[q] += behind[following, q]
                        least = max(least, spent[s, q] + cost[q])
                    if least >= target or not fits(d, a, b, halves, bytes_held):
                        continue
                    if filled == len(rows):
                        return -1
                    if place[s] < 0:
                        place[s] = live
                        live += 1
                    for q in range(asked):
                        behind[s, q] = min(behind[s, q], cost[q])
                    for column, value in enumerate((d, place[s], place[following], a, b)):
                        rows[filled, column] = value
                    for k in range(2):
                        times[filled, 0, k] = first.time[a, k] - less[0, k]
                        times[filled, 1, k] = second.time[b, k] - less[1, k]
                    filled += 1
        for s in range(layers[d + 1], layers[d + 2]):
            number[state[s, 0] * size + state[s, 1]] = -1
        if live == 0:
            return 0
    return filled


@inner
def reach(meet, target, size, halves, nets, paths, prices, bytes_held, number):
    """Return the states of chains below the target, by layer, and the least cost up to each.

    Parameters
    ----------
    number
        Shape (N²,): −1, and again so at the end.

    Returns
    -------
    tuple of arrays
        Where layers begin, (D + 2,); the ideals of each state, (S, 2); and costs, (S, Q).
    """
    first, second = halves
    asked, devices = len(prices), len(paths)
    state, spent = np.zeros((1024, 2), np.int64), np.zeros((1024, asked))
    state[0, 1] = meet
    layers = np.zeros(devices + 2, np.int64)
    layers[1] = 1
    less, cost = np.zeros((2, 2)), np.zeros(asked)
    states = 1
    for d in range(devices):
        for i in range(layers[d], layers[d + 1]):
            low, high = state[i]
            for a in range(first.begin[d, low], first.begin[d, low + 1]):
                room = target - first.path[a, 0] + first.spared[a]
                to = first.end[a]
                for b in range(second.begin[d, high], second.begin[d, high + 1]):
                    if second.path[b, 0] >= room:
                        break
                    spare(a, b, nets, less)
                    if not below(a, b, target, halves, paths[d], less):
                        continue
                    least = -np.inf
                    for q in range(asked):
                        cost[q] = spent[i, q] + first.cost[a, q] + second.cost[b, q]
                        cost[q] -= worth(d, devices, prices[q], less)
                        least = max(least, cost[q] + first.left[a, q] + second.left[b, q])
                    if least >= target or not fits(d, a, b, halves, bytes_held):
                        continue
                    at = to * size + second.end[b]
                    s = number[at]
                    if s < 0:
                        if states == len(state):
                            state = np.concatenate((state, state))
                            spent = np.concatenate((spent, spent))
                        s = states
                        number[at] = s
                        state[s, 0], state[s, 1] = to, second.end[b]
                        spent[s] = cost
                        states += 1
                    for q in range(asked):
                        spent[s, q] = min(spent[s, q], cost[q])
        layers[d + 2] = states
        for s in range(layers[d + 1], states):
            number[state[s, 0] * size + state[s, 1]] = -1
    return layers, state[:states], spent[:states]


@inner
def spare(a, b, nets, less):
    """Set what two stages of a device save by sharing nets, by stage and pass, shape (2, 2).

    Forward data is paid for in the first stage of the device that has a pin, gradients in the last;
    neither if no pin is elsewhere.
    """
    less[:] = 0.0
    for i in range(nets.first[a], nets.first[a + 1]):
        n = nets.net[i]
        if nets.above[b, n] > 0:
            less[1, 0] += nets.weight[0, n]
            less[0, 1] += nets.weight[1, n]
            if nets.whole[i] and nets.above[b, n] > 1:
                less[0, 0] += nets.weight[0, n]
                less[1, 1] += nets.weight[1, n]


@inner
def below(a, b, target, halves, paths, less):
    """Return whether paths that stay on the device leave chains with two stages below a target."""
    first, second = halves
    for p in range(len(paths)):
        total = first.path[a, p] + second.path[b, p]
        for k in range(2):
            total -= paths[p, 0, k] * less[0, k] + paths[p, 1, k] * less[1, k]
        if total >= target:
            return False
    return True


@inner
def worth(d, devices, prices, less):
    """Return what two stages save at some prices."""
    total = 0.0
    for k in range(2):
        total += prices[d, k] * less[0, k] + prices[devices + d, k] * less[1, k]
    return total


@inner
def fits(d, a, b, halves, bytes_held):
    """Return whether two stages of a device have room there."""
    first, second = halves
    held, room = bytes_held
    most = 0.0
    for n in range(held.shape[1]):
        most = max(most, held[d, n, 0] * first.bytes[a, 1] + held[d, n, 1] * second.bytes[b, 1])
    return first.bytes[a, 0] + second.bytes[b, 0] + most <= room
