"""The inner loop of the bound along a spine: see `spine`."""

from __future__ import annotations

from ....instances.common.kernel import kernel


@kernel
def reach(first, last, units, nets, costs, limits, found, scratch):
    """Extend stages from the places `first` … `last` − 1 of the spine.

    Place i lies before the spine's unit i. Kind 0 is the one that is counted; of the others it is
    only counted how many devices they have in all.

    Parameters
    ----------
    units
        Units by f, shape (U,), the first of each f, (L + 2,), and g of each unit, (U,).
    nets
        Nets of each unit as compressed rows, twice, and least f and greatest g of each, (E,) twice.
    costs
        Work (K, U), memory (U,), weights (K, E).
    limits
        Most load, room of each kind (K,), and how many devices of kind 0 there are.
    found
        Shape (1 + others, L + 1) twice: least devices of kind 0 up to a place, by how many others
        there are; and least transfers of all of them.
    scratch
        Shape (E,): zeros; shape (L + 1,): anything.
    """
    by_after, start, before = units
    unit_ptr, unit_nets, net_first, net_last = nets
    work, memory, weight = costs
    limit, room, devices = limits
    fewest, least = found
    seen, ends = scratch
    length = fewest.shape[1] - 1
    kinds, others = len(room), len(fewest) - 1
    for i in range(first, last):
        some = False
        for o in range(others + 1):
            some |= fewest[o, i] < devices or (fewest[o, i] <= devices and o < others)
        if not some:
            continue
        for k in range(kinds):
            stamp = i * kinds + k + 1
            for j in range(i, length):
                ends[j] = 0.0
            done, held, paid = 0.0, 0.0, 0.0
            for j in range(i, length):
                for at in range(start[j], start[j + 1]):
                    v = by_after[at]
                    if before[v] < i:
                        continue
                    done += work[k, v]
                    held += memory[v]
                    for r in range(unit_ptr[v], unit_ptr[v + 1]):
                        e = unit_nets[r]
                        if seen[e] == stamp:
                            continue
                        seen[e] = stamp
                        if net_first[e] < i:
                            paid += weight[k, e]
                        elif net_last[e] > j:
                            paid += weight[k, e]
                            ends[min(net_last[e], length - 1)] += weight[k, e]
                paid -= ends[j]
                if done > limit or held > room[k]:
                    break
                if done + paid > limit:
                    continue
                for o in range(others + 1):
                    if k == 0 and fewest[o, i] < devices:
                        fewest[o, j + 1] = min(fewest[o, j + 1], fewest[o, i] + 1)
                        least[o, j + 1] = min(least[o, j + 1], least[o, i] + paid)
                    if k > 0 and o < others and fewest[o, i] <= devices:
                        fewest[o + 1, j + 1] = min(fewest[o + 1, j + 1], fewest[o, i])
                        least[o + 1, j + 1] = min(least[o + 1, j + 1], least[o, i])
