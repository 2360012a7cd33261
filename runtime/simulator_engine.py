"""The event engine: devices work through their lists, transfers through their lanes.

The events are: a device ends an action, a lane ends a job, a message arrives. They are taken in
the order of time, then of creation, so a run is the same every time. Memory is linear in the
actions and jobs; an event costs O(log(devices + lanes + messages under way)), on fair lanes also
the messages on the lane.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..instances.arrays import Floats, Ints
from .simulator_program import Program


def execute(
    program: Program, microbatches: int
) -> tuple[Floats, Floats, Ints, Floats, Floats, Ints, Ints]:
    """Run a program.

    Returns
    -------
    start, end, cause
        Shape (N,): of each action; `inf` for what never ran. The cause of an action is what it
        last waited for: action i as i, job i as −2 − i, nothing as −1.
    job_start, job_end, job_cause
        Shape (X · microbatches,): of each job, microbatch fastest; `job_end` is the arrival.
    reached
        Shape (D,): how many actions each device has ended.
    """
    p = program
    result: tuple[Floats, Floats, Ints, Floats, Floats, Ints, Ints] = _execute(
        p.first, p.template, p.microbatch, p.duration, p.gate, p.rendezvous, p.waits, p.gate_stage,
        p.gate_job, p.feed_at, p.feed_to, p.replicas_at, p.replicas_to, p.job_from, p.job_to,
        p.job_pair, p.job_work, p.link, p.rate, p.latency,
        p.order_at, p.order_to, p.fair, microbatches,
    )  # fmt: skip
    return result


@njit(cache=True)
def _push(when, order, what, size, t, seq, code):  # type: ignore[no-untyped-def]
    if size == len(when):
        more = max(64, 2 * size)
        a, b, c = np.empty(more), np.empty(more, np.int64), np.empty(more, np.int64)
        a[:size], b[:size], c[:size] = when, order, what
        when, order, what = a, b, c
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if when[up] < t or (when[up] == t and order[up] < seq):
            break
        when[i], order[i], what[i] = when[up], order[up], what[up]
        i = up
    when[i], order[i], what[i] = t, seq, code
    return when, order, what


@njit(cache=True)
def _pop(when, order, what, size):  # type: ignore[no-untyped-def]
    """Remove the first of `size` events; the caller has read it."""
    size -= 1
    t, seq, code = when[size], order[size], what[size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        right = down + 1
        if right < size and (
            when[right] < when[down] or (when[right] == when[down] and order[right] < order[down])
        ):
            down = right
        if t < when[down] or (t == when[down] and seq < order[down]):
            break
        when[i], order[i], what[i] = when[down], order[down], what[down]
        i = down
    when[i], order[i], what[i] = t, seq, code


@njit(cache=True)
def _execute(  # type: ignore[no-untyped-def]
    first, template, microbatch, duration, gate, rendezvous, waits, gate_stage, gate_job, feed_at,
    feed_to, replicas_at, replicas_to, job_from, job_to, job_pair, job_work, link, rate, latency,
    order_at, order_to, fair, m,
):  # fmt: skip
    devices, lanes, templates = len(first) - 1, len(rate), len(duration)
    total, jobs = len(template), len(job_work) * m
    start, end = np.full(total, np.inf), np.full(total, np.inf)
    cause = np.full(total, -1, np.int64)
    job_start, job_end = np.full(jobs, np.inf), np.full(jobs, np.inf)
    job_cause = np.full(jobs, -1, np.int64)
    missing = np.empty((len(waits), m), np.int32)
    for g in range(len(waits)):
        missing[g, :] = waits[g]
    at = first[:-1].copy()  # action that each device does or waits for
    busy = np.zeros(devices, np.bool_)
    head, tail = np.full(lanes, -1, np.int64), np.full(lanes, -1, np.int64)
    after = np.full(jobs, -1, np.int64)  # next job on the same lane
    active = np.zeros(lanes, np.int64)
    left = np.zeros(jobs if fair else 0)
    ordered = len(order_at) > 1
    ready = np.zeros(jobs if ordered else 0, np.bool_)
    done = order_at[:-1].copy()  # place in its order that each lane has come to
    since = np.zeros(lanes)
    stamp = np.full(lanes, -1, np.int64)
    when, order = np.empty(64), np.empty(64, np.int64)
    what = np.empty(64, np.int64)
    size, seq = 0, 0
    # Two work lists: devices that may go on, and (gate, microbatch) opened; the reason for each.
    look = np.empty(devices + 1, np.int64)
    looking = devices
    for d in range(devices):
        look[d] = devices - 1 - d
    now = 0.0
    reason = np.int64(-1)
    ended = np.int64(-1)  # template or job whose feeds are to be opened
    ended_m = 0
    while True:
        if ended >= 0:
            for f in range(feed_at[ended], feed_at[ended + 1]):
                g = feed_to[f]
                missing[g, ended_m] -= 1
                if missing[g, ended_m] != 0:
                    continue
                x = gate_job[g]
                if x < 0:
                    s = gate_stage[g]
                    ring = replicas_at[s + 1] - replicas_at[s]
                    d = replicas_to[replicas_at[s] + ended_m % ring]
                    i = at[d]
                    if (
                        not busy[d]
                        and i < first[d + 1]
                        and microbatch[i] == ended_m
                        and gate[template[i]] == g
                    ):
                        look[looking] = d
                        looking += 1
                    continue
                a, b = job_from[x], job_to[x]
                da = replicas_to[replicas_at[a] + ended_m % (replicas_at[a + 1] - replicas_at[a])]
                lane = da
                if job_pair[x] == 1:
                    db = replicas_to[
                        replicas_at[b] + ended_m % (replicas_at[b + 1] - replicas_at[b])
                    ]
                    lane = link[da, db]
                job = x * m + ended_m
                job_cause[job] = reason
                if lane < 0:  # both ends are the same replica device
                    job_start[job] = now
                    when, order, what = _push(
                        when, order, what, size, now, seq, devices + lanes + job
                    )
                    size += 1
                    seq += 1
                    continue
                if ordered:
                    ready[job] = True
                    if order_to[done[lane]] == job and head[lane] < 0:
                        head[lane] = job
                        job_start[job] = now
                        finish = now + job_work[x] / rate[lane]
                        when, order, what = _push(
                            when, order, what, size, finish, seq, devices + lane
                        )
                        size += 1
                        seq += 1
                elif fair:
                    job_start[job] = now
                    share = (now - since[lane]) * rate[lane] / max(1, active[lane])
                    least = job_work[x]
                    i = head[lane]
                    while i >= 0:
                        left[i] -= share
                        least = min(least, left[i])
                        i = after[i]
                    since[lane] = now
                    left[job] = job_work[x]
                    after[job] = head[lane]
                    head[lane] = job
                    active[lane] += 1
                    stamp[lane] = seq
                    finish = now + max(0.0, least) * active[lane] / rate[lane]
                    when, order, what = _push(when, order, what, size, finish, seq, devices + lane)
                    size += 1
                    seq += 1
                elif head[lane] < 0:
                    head[lane] = tail[lane] = job
                    job_start[job] = now
                    finish = now + job_work[x] / rate[lane]
                    when, order, what = _push(when, order, what, size, finish, seq, devices + lane)
                    size += 1
                    seq += 1
                else:
                    after[tail[lane]] = job
                    tail[lane] = job
            ended = np.int64(-1)
        while looking > 0:
            looking -= 1
            d = look[looking]
            i = at[d]
            if busy[d] or i >= first[d + 1]:
                continue
            t, j = template[i], microbatch[i]
            g = gate[t]
            if rendezvous[t] == 1:
                missing[g, j] -= 1
                cause[i] = i - 1 if i > first[d] else -1
                if missing[g, j] > 0:
                    continue
                for other in range(devices):
                    k = at[other]
                    if k < first[other + 1] and gate[template[k]] == g and microbatch[k] == j:
                        busy[other] = True
                        start[k], end[k] = now, now + duration[t]
                        if other != d:
                            cause[k] = i - 1 if i > first[d] else -1
                        when, order, what = _push(when, order, what, size, end[k], seq, other)
                        size += 1
                        seq += 1
                continue
            if g >= 0 and missing[g, j] > 0:
                continue
            busy[d] = True
            start[i], end[i] = now, now + duration[t]
            # It waited for whoever ended last: the device's own previous action, or `reason`.
            own = i > first[d] and end[i - 1] == now
            cause[i] = i - 1 if own else reason
            when, order, what = _push(when, order, what, size, end[i], seq, d)
            size += 1
            seq += 1
        if size == 0:
            break
        now, code, stamped = when[0], what[0], order[0]
        _pop(when, order, what, size)
        size -= 1
        if code < devices:
            i = at[code]
            at[code] += 1
            busy[code] = False
            reason, ended, ended_m = i, np.int64(template[i]), microbatch[i]
            look[looking] = code
            looking += 1
            continue
        lane = code - devices
        if lane >= lanes:  # a message arrives
            job = lane - lanes
            job_end[job] = now
            reason, ended, ended_m = -2 - job, templates + job // m, job % m
            continue
        if fair:
            if stamp[lane] != stamped:
                continue
            share = (now - since[lane]) * rate[lane] / active[lane]
            since[lane] = now
            job, before_job = -1, -1
            i, previous = head[lane], -1
            while i >= 0:
                left[i] -= share
                if job < 0 or left[i] <= left[job]:  # of equals, the earliest
                    job, before_job = i, previous
                previous, i = i, after[i]
            if before_job < 0:
                head[lane] = after[job]
            else:
                after[before_job] = after[job]
            active[lane] -= 1
            if active[lane] > 0:
                least = np.inf
                i = head[lane]
                while i >= 0:
                    least = min(least, left[i])
                    i = after[i]
                stamp[lane] = seq
                finish = now + max(0.0, least) * active[lane] / rate[lane]
                when, order, what = _push(when, order, what, size, finish, seq, devices + lane)
                size += 1
                seq += 1
        else:
            job = head[lane]
            head[lane] = after[job]
            if ordered:
                done[lane] += 1
                k = done[lane]
                if k < order_at[lane + 1] and ready[order_to[k]]:
                    head[lane] = order_to[k]
            if head[lane] >= 0:
                following = head[lane]
                job_start[following] = now
                job_cause[following] = -2 - job
                finish = now + job_work[following // m] / rate[lane]
                when, order, what = _push(when, order, what, size, finish, seq, devices + lane)
                size += 1
                seq += 1
        arrival = now + latency[lane]
        when, order, what = _push(when, order, what, size, arrival, seq, devices + lanes + job)
        size += 1
        seq += 1
    return start, end, cause, job_start, job_end, job_cause, at - first[:-1]
