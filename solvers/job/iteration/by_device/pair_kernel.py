"""The inner loops that list pairs of stages of a device: states first, then pairs between them."""

from __future__ import annotations

import numpy as np

from .....instances.common.kernel import inner, kernel, uncounted


@kernel
def list_pairs(meet, target, halves, nets, bytes_held, out):
    """List the pairs of stages of each device, for chains that pass the ideal `meet` half way.

    What a chain up to each state costs at least is found from the first device on, without listing
    pairs; then, from the last one back, what it costs from there on. Pairs that no chain below the
    target has are left out, most of them between the two.

    `halves` are two `Half` that share `nets`; `bytes_held` says how many microbatches each device
    has in flight, shape (D, V, 2), rows of 0 fill up, the bytes that there are, and which devices
    may have too few. Rows of `out` are filled in from their end: (5, T) for the layer, the states,
    and the rows of both halves, and (T, 2, 2) for forward and backward time. Returns how many, −1
    if too many.
    """
    first, second = halves
    rows, times = out
    most = len(times)
    devices, asked, size = len(first.begin), first.cost.shape[1], first.begin.shape[1] - 1
    number = np.full(size * size, -1, np.int32)
    layers, state, spent = reach(meet, target, halves, nets, bytes_held, number)
    if len(state) == layers[devices]:
        return 0
    behind = np.full((len(state), asked), np.inf)
    place = np.full(len(state), -1, np.int64)
    behind[layers[devices]], place[layers[devices]] = 0.0, 0
    tests = first.path.shape[1]
    less, cost, room = np.zeros((2, 2)), np.zeros(asked), np.zeros(tests)
    filled = 0
    for d in range(devices - 1, -1, -1):
        for s in range(layers[d + 1], layers[d + 2]):
            number[state[s, 0] * size + state[s, 1]] = s if place[s] >= 0 else -1
        live = 0
        for s in range(layers[d], layers[d + 1]):
            low, high = state[s]
            for a in range(first.begin[d, low], first.begin[d, low + 1]):
                to = first.end[a] * size
                for p in range(len(room)):
                    room[p] = target - first.path[a, p]
                most_room = room[0] + first.spared[a]
                own = nets.first[a], nets.first[a + 1]
                for b in range(second.begin[d, high], second.begin[d, high + 1]):
                    if second.path[b, 0] >= most_room:
                        break
                    following = number[to + second.end[b]]
                    if following < 0 or not below(own, b, room, second, nets):
                        continue
                    least = -np.inf
                    for q in range(asked):
                        cost[q] = first.cost[a, q] + second.cost[b, q] + behind[following, q]
                        cost[q] = lessened(cost[q], own, b, tests + q, nets)
                        least = max(least, spent[s, q] + cost[q])
                    if least >= target or not fits(d, a, b, halves, bytes_held):
                        continue
                    if filled == most:
                        return -1
                    if place[s] < 0:
                        place[s] = live
                        live += 1
                    for q in range(asked):
                        behind[s, q] = min(behind[s, q], cost[q])
                    filled += 1
                    at = most - filled
                    for column, value in enumerate((d, place[s], place[following], a, b)):
                        rows[column, at] = value
                    spare(a, b, nets, less)
                    for k in range(2):
                        times[at, 0, k] = first.time[a, k] - less[0, k]
                        times[at, 1, k] = second.time[b, k] - less[1, k]
        for s in range(layers[d + 1], layers[d + 2]):
            number[state[s, 0] * size + state[s, 1]] = -1
        if live == 0:
            return 0
    return filled


@inner
def reach(meet, target, halves, nets, bytes_held, number):
    """Return the states of chains below the target, by layer, and the least cost up to each.

    That is where layers begin, (D + 2,), the ideals of each state, (S, 2), and costs, (S, Q).
    `number`, shape (N²,), is −1, and again so at the end.
    """
    first, second = halves
    devices, asked, size = len(first.begin), first.cost.shape[1], first.begin.shape[1] - 1
    state, spent = np.zeros((1024, 2), np.int64), np.zeros((1024, asked))
    state[0, 1] = meet
    layers = np.zeros(devices + 2, np.int64)
    layers[1] = 1
    tests = first.path.shape[1]
    before, cost, room = np.zeros(asked), np.zeros(asked), np.zeros(tests)
    states = 1
    for d in range(devices):
        for i in range(layers[d], layers[d + 1]):
            low, high = state[i]
            for a in range(first.begin[d, low], first.begin[d, low + 1]):
                to = first.end[a]
                for p in range(len(room)):
                    room[p] = target - first.path[a, p]
                most_room = room[0] + first.spared[a]
                own = nets.first[a], nets.first[a + 1]
                for q in range(asked):
                    before[q] = spent[i, q] + first.cost[a, q]
                for b in range(second.begin[d, high], second.begin[d, high + 1]):
                    if second.path[b, 0] >= most_room:
                        break
                    if not below(own, b, room, second, nets):
                        continue
                    least = -np.inf
                    for q in range(asked):
                        cost[q] = before[q] + second.cost[b, q]
                        cost[q] = lessened(cost[q], own, b, tests + q, nets)
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
                        for q in range(asked):
                            spent[s, q] = np.inf
                        states += 1
                    for q in range(asked):
                        spent[s, q] = min(spent[s, q], cost[q])
        layers[d + 2] = states
        for s in range(layers[d + 1], states):
            number[state[s, 0] * size + state[s, 1]] = -1
    return layers, state[:states], spent[:states]


@uncounted
def lessened(value, own, b, column, nets):
    """Return a cost of two stages, less what they save by sharing nets."""
    for i in range(own[0], own[1]):
        shared = nets.above[b, nets.net[i]]
        if shared > 0:
            value -= nets.saved[i, shared - 1, column]
    return value


@uncounted
def below(own, b, room, second, nets):
    """Return whether paths that stay on the device leave chains with two stages below a target."""
    for p in range(len(room)):
        if lessened(second.path[b, p], own, b, p, nets) >= room[p]:
            return False
    return True


@uncounted
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


@uncounted
def fits(d, a, b, halves, bytes_held):
    """Return whether two stages of a device have room there."""
    first, second = halves
    held, room, tight = bytes_held
    if not tight[d]:
        return True
    most = 0.0
    for n in range(held.shape[1]):
        most = max(most, held[d, n, 0] * first.bytes[a, 1] + held[d, n, 1] * second.bytes[b, 1])
    return first.bytes[a, 0] + second.bytes[b, 0] + most <= room
