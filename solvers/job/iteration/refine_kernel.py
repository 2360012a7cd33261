"""The inner loops of best first: prices against chains, as a matrix game."""

from __future__ import annotations

import numpy as np

from ....formulations.job import chain_kernel
from ....instances.common.kernel import inner, kernel

execute = chain_kernel.execute


#: Relative gap between bound and value of the game at which rounds end.
CLOSE = 5e-4


@kernel
def refine(graph, alive, actions, target, rounds, states, pool, out):
    """Return a bound of the chains of some options, and say which options one below it has.

    A game of paths against chains, of those met so far: the cheapest chain at the mean of the best
    mixture of paths, and the longest path of it and of the best mixture of chains, are added in
    turn. The bound is `inf` if no chain is left. `alive` numbers the options, increasing.

    `pool` begins with paths, one at least, shape (R, P, 4), of which each round adds two, and with
    chains, as places in `alive`, shape (C, P), of which each adds one, without those that can no
    longer be below the target; it has room for the weights of both in the best mixtures, and how
    many paths and chains there are. `out` is filled in: whether each option is kept, (A,); prices
    of the best bound, (P, 4); the options of the best chain, (P,), of none −1; and its makespan,
    (1,).
    """
    paths, chains, path_weight, chain_weight, sizes = pool
    keep, best_prices, chosen, makespan = out
    stages = len(graph.begin) - 1
    keep[:] = True
    chosen[:] = -1
    makespan[0] = np.inf
    rows, columns = sizes[0], sizes[1]
    duration = np.zeros((len(chains), stages, 4))
    payoff = np.zeros((len(paths), len(chains)))
    for j in range(columns):
        set_durations(graph, alive, chains[j], duration[j])
        for i in range(rows):
            payoff[i, j] = priced(paths[i], duration[j])
    mean, mixed = np.zeros((stages, 4)), np.zeros((stages, 4))
    end = np.empty(len(actions.which))
    ahead = np.empty((stages + 1, states))
    behind = np.empty((stages + 1, states))
    options = gather(graph, alive)
    left = len(alive)
    bound, above = -np.inf, np.inf
    path_weight[0] = 1.0
    for _ in range(rounds):
        if columns > 0:
            value = play(payoff, rows, columns, path_weight[:rows], chain_weight[:columns])
            mix(duration, chain_weight, columns, mixed)
            whole = execute(actions, 0.0, mixed, end, paths[rows])
            above = min(above, whole)
            if bound >= above * (1 - CLOSE):
                break
            if whole > value:
                for j in range(columns):
                    payoff[rows, j] = priced(paths[rows], duration[j])
                rows += 1
                play(payoff, rows, columns, path_weight[:rows], chain_weight[:columns])
        mix(paths, path_weight, rows, mean)
        value = sweep(options, left, mean, ahead, behind)
        if value > bound:
            bound = value
            best_prices[:] = mean
        if not value < target:
            break
        left = leave_out(options, left, target, ahead, behind, keep)
        columns = without_dead(keep, chains, duration, payoff, rows, columns)
        follow(options, left, behind, chains[columns])
        set_durations(graph, alive, chains[columns], duration[columns])
        alone = execute(actions, 0.0, duration[columns], end, paths[rows])
        rows += 1
        columns += 1
        for i in range(rows):
            payoff[i, columns - 1] = priced(paths[i], duration[columns - 1])
        for j in range(columns):
            payoff[rows - 1, j] = priced(paths[rows - 1], duration[j])
        above = min(above, alone)
        if alone < makespan[0]:
            makespan[0] = alone
            for s in range(stages):
                chosen[s] = alive[chains[columns - 1, s]]
        if bound >= above * (1 - CLOSE):
            break
    sizes[0], sizes[1] = rows, columns
    if columns > 0:
        play(payoff, rows, columns, path_weight[:rows], chain_weight[:columns])
    return bound


@inner
def mix(values, weight, count, mixed):
    """Set the weighted sum of the first `count` values, shape (P, 4)."""
    mixed[:] = 0.0
    for i in range(count):
        if weight[i] > 0:
            for s in range(len(mixed)):
                for a in range(4):
                    mixed[s, a] += weight[i] * values[i, s, a]


@inner
def priced(path, duration):
    """Return the length of a path, by the durations of its actions."""
    total = 0.0
    for s in range(len(path)):
        for a in range(4):
            total += path[s, a] * duration[s, a]
    return total


@inner
def set_durations(graph, alive, chain, duration):
    """Set the durations of a chain of options, given as places in `alive`."""
    for s in range(len(chain)):
        for a in range(graph.duration.shape[1]):
            duration[s, a] = graph.duration[alive[chain[s]], a]


@inner
def without_dead(keep, chains, duration, payoff, rows, columns):
    """Remove chains with options that are not kept; return how many chains are left."""
    left = 0
    for j in range(columns):
        alive = True
        for s in range(chains.shape[1]):
            alive = alive and keep[chains[j, s]]
        if alive:
            if left < j:
                chains[left] = chains[j]
                duration[left] = duration[j]
                for i in range(rows):
                    payoff[i, left] = payoff[i, j]
            left += 1
    return left


@inner
def gather(graph, alive):
    """Return the options in the order of `alive`, next to each other in memory.

    That is, shape (A, 4), place in `alive`, layer, and state before and behind; shape (A, 4) or
    (A, 2), times; and shape (A,), costs, to be set.
    """
    places = np.empty((len(alive), 4), np.int32)
    times = np.empty((len(alive), graph.duration.shape[1]))
    for i in range(len(alive)):
        o = alive[i]
        places[i, 0] = i
        places[i, 1] = graph.layer[o]
        places[i, 2] = graph.source[o]
        places[i, 3] = graph.sink[o]
        for a in range(times.shape[1]):
            times[i, a] = graph.duration[o, a]
    return places, times, np.empty(len(alive))


@inner
def sweep(options, left, prices, ahead, behind):
    """Set the costs of options, and the least before and behind each state; return the least."""
    places, times, cost = options
    ahead[:] = np.inf
    behind[:] = np.inf
    ahead[0, 0] = 0.0
    behind[-1, 0] = 0.0
    for i in range(left):
        s = places[i, 1]
        own = 0.0
        for a in range(times.shape[1]):
            own += prices[s, a] * times[i, a]
        cost[i] = own
        reached = ahead[s, places[i, 2]] + own
        ahead[s + 1, places[i, 3]] = min(ahead[s + 1, places[i, 3]], reached)
    for i in range(left - 1, -1, -1):
        s = places[i, 1]
        reached = behind[s + 1, places[i, 3]] + cost[i]
        behind[s, places[i, 2]] = min(behind[s, places[i, 2]], reached)
    return ahead[-1, 0]


@inner
def leave_out(options, count, target, ahead, behind, keep):
    """Remove options without a chain below the target; return how many are left."""
    places, times, cost = options
    left = 0
    for i in range(count):
        s = places[i, 1]
        least = ahead[s, places[i, 2]] + cost[i] + behind[s + 1, places[i, 3]]
        if not least < target:
            keep[places[i, 0]] = False
            continue
        if left < i:
            places[left] = places[i]
            times[left] = times[i]
            cost[left] = cost[i]
        left += 1
    return left


@inner
def follow(options, left, behind, chain):
    """Set the cheapest chain, as places in `alive`."""
    places, _, cost = options
    state, s, chosen = 0, 0, -1
    least = np.inf
    chain[:] = -1
    for i in range(left):
        if places[i, 1] != s:
            state, s = places[chosen, 3], places[i, 1]
            least = np.inf
        if places[i, 2] == state:
            total = cost[i] + behind[s + 1, places[i, 3]]
            if total < least or chain[s] < 0:
                least = total
                chain[s] = places[i, 0]
                chosen = i


@inner
def play(payoff, rows, columns, row_weight, column_weight):
    """Set the weights of both mixtures; return what the row player wins, by the simplex method.

    With A the payoffs, all positive: max Σ u s.t. A u ≤ 1, u ≥ 0, whose duals are the other
    mixture; both are scaled to add up to 1. Where rounding spoils the outcome, or it takes too many
    steps, the weights are still mixtures.
    """
    table = np.zeros((rows + 1, columns + 1))
    largest = 1e-300  # where nothing takes time
    for i in range(rows):
        for j in range(columns):
            largest = max(largest, payoff[i, j])
    for i in range(rows):
        table[i, columns] = 1.0
        for j in range(columns):
            table[i, j] = payoff[i, j] / largest
    for j in range(columns):
        table[rows, j] = -1.0
    basic = np.arange(columns, columns + rows)  # variables: columns first, then slacks of rows
    other = np.arange(columns)
    for _ in range(4 * (rows + columns)):
        c, steepest = -1, -1e-9
        for j in range(columns):
            if table[rows, j] < steepest:
                c, steepest = j, table[rows, j]
        if c < 0:
            break
        r, least = -1, np.inf
        for i in range(rows):
            if table[i, c] > 1e-9 and table[i, columns] / table[i, c] < least:
                r, least = i, table[i, columns] / table[i, c]
        if r < 0:
            break
        pivot = table[r, c]
        for j in range(columns + 1):
            table[r, j] /= pivot
        for i in range(rows + 1):
            factor = table[i, c]
            if i != r and factor != 0.0:
                for j in range(columns + 1):
                    if j != c:
                        table[i, j] -= factor * table[r, j]
                table[i, c] = -factor / pivot
        table[r, c] = 1.0 / pivot
        entering, leaving = other[c], basic[r]
        other[c], basic[r] = leaving, entering
    weigh(table, basic, other, row_weight, column_weight)
    return largest / table[rows, columns] if table[rows, columns] > 0 else 0.0


@inner
def weigh(table, basic, other, row_weight, column_weight):
    """Read both mixtures from the last table."""
    rows, columns = len(basic), len(other)
    row_weight[:] = 0.0
    column_weight[:] = 0.0
    for i in range(rows):
        if basic[i] < columns:
            column_weight[basic[i]] = max(table[i, columns], 0.0)
    for j in range(columns):
        if other[j] >= columns:
            row_weight[other[j] - columns] = max(table[rows, j], 0.0)
    normalise(row_weight)
    normalise(column_weight)


@inner
def normalise(weight):
    """Scale weights so that they add up to 1; the first gets all of it if they are all 0."""
    total = 0.0
    for i in range(len(weight)):
        total += weight[i]
    if not total > 0.0:
        weight[0] = 1.0
        total = 1.0
    for i in range(len(weight)):
        weight[i] /= total
