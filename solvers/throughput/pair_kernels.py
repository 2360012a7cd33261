"""Inner loops of the neighbourhood search: loads, and the best split of two devices, compiled."""

from __future__ import annotations

import numpy as np

from ...instances.common.kernel import kernel
from .column_generation.frontier_kernels import build

#: Most labels of one split: some 0.2 s.
MOST_WORK = 10_000_000


@kernel
def loads(where, compute, weight, memory, net_ptr, net_pins, kind_of, load, used):
    """Write the load and the used memory of each device.

    Parameters
    ----------
    where
        Shape (U,): device of each unit.
    compute, weight
        Shapes (K, U) and (K, E).
    """
    load[:] = 0.0
    used[:] = 0.0
    for v in range(len(where)):
        load[where[v]] += compute[kind_of[where[v]], v]
        used[where[v]] += memory[v]
    paid = np.full(len(load), -1)
    for e in range(len(net_ptr) - 1):
        first = where[net_pins[net_ptr[e]]]
        whole = True
        for j in range(net_ptr[e], net_ptr[e + 1]):
            if where[net_pins[j]] != first:
                whole = False
                break
        if whole:
            continue
        for j in range(net_ptr[e], net_ptr[e + 1]):
            d = where[net_pins[j]]
            if paid[d] != e:
                paid[d] = e
                load[d] += weight[kind_of[d], e]


@kernel
def resplit(
    where, free, a, b, order, unit_ptr, unit_nets, net_ptr, net_pins, compute_a, compute_b,
    weight_a, weight_b, memory, room_a, room_b, most, least_sum, buckets, width,
):  # fmt: skip
    """Split the free units of two devices anew, as well as the labels allow.

    Labels are true; of two that fall into one bucket of A's load, the one that leaves less load
    to B stays. A label is dropped if it cannot lead to loads within `most` each.

    Parameters
    ----------
    where, free
        Shape (U,): device of each unit, and whether it may move; written on success.
    a, b
        The devices.
    most
        Both loads must stay below this.
    least_sum
        True to minimise the sum of the loads, False their maximum.
    width
        Most states of one layer.

    Returns
    -------
    code, load_a, load_b
        1 if a split within `most` was found, 0 if none was, −1 if that is too much work.
    """
    nets = len(net_ptr) - 1
    size = 0
    sub = np.empty(len(order), np.int64)
    base_a, base_b, held_a, held_b, compute = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(order)):
        v = order[i]
        if where[v] != a and where[v] != b:
            continue
        if free[v]:
            sub[size] = v
            size += 1
            compute += min(compute_a[v], compute_b[v])
        elif where[v] == a:
            base_a += compute_a[v]
            held_a += memory[v]
        else:
            base_b += compute_b[v]
            held_b += memory[v]
    sub = sub[:size]
    left = np.zeros(nets, np.int64)
    fixed = np.zeros(nets, np.int64)
    outside = np.zeros(nets, np.bool_)
    for e in range(nets):
        for j in range(net_ptr[e], net_ptr[e + 1]):
            v = net_pins[j]
            if where[v] != a and where[v] != b:
                outside[e] = True
            elif free[v]:
                left[e] += 1
            elif where[v] == a:
                fixed[e] |= 1
            else:
                fixed[e] |= 2
        if fixed[e] & 1 and (outside[e] or fixed[e] & 2):
            base_a += weight_a[e]
        if fixed[e] & 2 and (outside[e] or fixed[e] & 1):
            base_b += weight_b[e]
    layer_ptr, step, cost_a, cost_b, _ = build(
        sub, unit_ptr, unit_nets, left, fixed, outside, weight_a, weight_b,
        np.bool_(True), 2 * most * (1 + 1e-9) - (base_a + base_b + compute), width, 64 * width,
        np.bool_(False),  # a constant would be compiled for as such
    )  # fmt: skip
    if len(layer_ptr) == 0:
        return -1, 0.0, 0.0
    states = layer_ptr[size]

    # togo[r, x]: least t_r·(load of A) + (1 − t_r)·(load of B) that completes x
    tilt = (0.5, 0.3, 0.7, 0.1, 0.9)
    togo = np.zeros((len(tilt), states + 1))
    for i in range(size - 1, -1, -1):
        v = sub[i]
        for x in range(layer_ptr[i], layer_ptr[i + 1]):
            for r in range(len(tilt)):
                t = tilt[r]
                to_a, to_b = np.inf, np.inf
                if step[x, 1] >= 0:
                    to_a = t * (compute_a[v] + cost_a[x, 1]) + (1 - t) * cost_b[x, 1]
                    to_a += togo[r, step[x, 1]]
                if step[x, 0] >= 0:
                    to_b = t * cost_a[x, 0] + (1 - t) * (compute_b[v] + cost_b[x, 0])
                    to_b += togo[r, step[x, 0]]
                togo[r, x] = min(to_a, to_b)

    if most <= 0:
        return 0, 0.0, 0.0
    scale = buckets / most
    widest = 0
    for i in range(size + 1):
        widest = max(widest, layer_ptr[i + 1] - layer_ptr[i])
    grid_a = np.empty((widest, buckets + 1))
    grid_b = np.full((widest, buckets + 1), np.inf)
    grid_held = np.empty((widest, buckets + 1))
    grid_from = np.empty((widest, buckets + 1), np.int64)
    low = np.full(widest, buckets + 1)
    high = np.full(widest, -1)
    first = np.zeros(widest + 1, np.int64)
    next_first = np.zeros(widest + 1, np.int64)
    first[1] = 1
    load_a, load_b, held = np.empty(1), np.empty(1), np.empty(1)
    load_a[0], load_b[0], held[0] = base_a, base_b, held_a
    origin = np.empty(1 << 12, np.int64)
    ends = np.zeros(size + 2, np.int64)
    ends[1] = 1
    total_held = held_a + held_b
    work = 0
    for i in range(size):
        v = sub[i]
        total_held += memory[v]
        begin, after = layer_ptr[i], layer_ptr[i + 1]
        work += first[after - begin]
        if work > MOST_WORK:
            return -1, 0.0, 0.0
        for x in range(begin, after):
            for k in range(first[x - begin], first[x - begin + 1]):
                for choice in range(2):
                    now_a = load_a[k] + cost_a[x, choice]
                    now_b = load_b[k] + cost_b[x, choice]
                    now_held = held[k]
                    if choice == 1:
                        now_a += compute_a[v]
                        now_held += memory[v]
                    else:
                        now_b += compute_b[v]
                    if not (now_a < most and now_b < most):
                        continue
                    if now_held > room_a or total_held - now_held > room_b:
                        continue
                    y = step[x, choice]
                    hopeless = y < 0
                    for r in range(0 if hopeless else len(tilt)):
                        if tilt[r] * now_a + (1 - tilt[r]) * now_b + togo[r, y] >= most:
                            hopeless = True
                            break
                    if hopeless:
                        continue
                    y -= after
                    at = int(now_a * scale)
                    if now_b < grid_b[y, at]:
                        grid_a[y, at] = now_a
                        grid_b[y, at] = now_b
                        grid_held[y, at] = now_held
                        grid_from[y, at] = 2 * k + choice
                        low[y] = min(low[y], at)
                        high[y] = max(high[y], at)
        wide = layer_ptr[i + 2] - after
        room = 0
        for y in range(wide):
            room += max(0, high[y] - low[y] + 1)
        if ends[i + 1] + room > len(origin):
            grown = np.empty(2 * (ends[i + 1] + room), np.int64)
            for x in range(ends[i + 1]):  # a slice would compile many times as long
                grown[x] = origin[x]
            origin = grown
        load_a, load_b, held = np.empty(room), np.empty(room), np.empty(room)
        kept = 0
        for y in range(wide):
            next_first[y] = kept
            best = np.inf
            for at in range(low[y], high[y] + 1):
                if grid_b[y, at] < best:
                    best = grid_b[y, at]
                    load_a[kept] = grid_a[y, at]
                    load_b[kept] = best
                    held[kept] = grid_held[y, at]
                    origin[ends[i + 1] + kept] = grid_from[y, at]
                    kept += 1
                grid_b[y, at] = np.inf
            low[y], high[y] = buckets + 1, -1
        next_first[wide] = kept
        first, next_first = next_first, first
        ends[i + 2] = ends[i + 1] + kept
        if kept == 0:
            return 0, 0.0, 0.0
    best, at = np.inf, -1
    for k in range(ends[size + 1] - ends[size]):
        score = load_a[k] + load_b[k] if least_sum else max(load_a[k], load_b[k])
        if score < best:
            best, at = score, k
    final_a, final_b = load_a[at], load_b[at]
    for i in range(size, 0, -1):
        came = origin[ends[i] + at]
        where[sub[i - 1]] = a if came & 1 else b
        at = came >> 1
    return 1, final_a, final_b
