"""Event engine: devices work through their actions, transfers through their lanes or routes.

The events are: a device ends an action, a transfer has sent all its data, a message arrives. They
are processed in order of time, then of creation, so that runs are reproducible. Memory is linear in
the actions and jobs; an event takes O(log(devices + lanes + messages under way)), and for messages
that share links fairly the time of `fill`.

Messages that share links fairly have max–min rates, updated as messages come and go.

References
----------
Bertsekas and Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2: progressive filling.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ...instances.common.arrays import Floats, Ints
from ...instances.common.kernel import inner, kernel
from .program import SimulationProgram

#: Largest relative difference that is taken for rounding.
SLACK = 1e-12


class ActionTimes(NamedTuple):
    """Start and end of every action and job; `inf` if it never started or ended."""

    # start, end, cause: (N,): of each action. The cause is the last one that it waited for:
    # action i as i, job i as −2 − i, nothing as −1.
    start: Floats
    end: Floats
    cause: Ints
    # job_start, job_end, job_cause: (X · microbatches,): of each job, microbatch fastest; `job_end`
    # is the arrival
    job_start: Floats
    job_end: Floats
    job_cause: Ints
    reached: Ints  # (D,): number of actions that each device has ended


class FillScratch(NamedTuple):
    """Working arrays of `fill`."""

    stopping: Ints  # flows whose speed is fixed
    room: Floats  # bandwidth of each link that is left
    users: Ints  # flows on each link without a speed


def execute(program: SimulationProgram, microbatches: int) -> ActionTimes:
    """Return the times of all actions and jobs of a program."""
    p = program
    found = _execute(p.actions, p.gates, p.replicas, p.jobs, p.lanes, p.fair, microbatches)
    return ActionTimes(*found)


@inner
def _device(replicas_at, replicas_to, stage, j):
    """Return the device of the stage's replica that takes microbatch j."""
    number = replicas_at[stage + 1] - replicas_at[stage]
    return replicas_to[replicas_at[stage] + j % number]


@kernel
def _execute(actions, gates, replicas, transfers, links, fair, m):
    """Return the fields of `ActionTimes` for m microbatches.

    It is one function: with its steps as functions that take named tuples of arrays, which numba
    copies at every call, a run takes 20 times as long, and twelve times if they are inlined.
    """
    first, template, microbatch, duration, gate, rendezvous = actions
    waits, gate_stage, gate_job, feed_at, feed_to = gates
    replicas_at, replicas_to = replicas
    job_from, job_to, _, job_pair, job_work = transfers
    rate, latency, route, route_at, route_to, order_at, order_to = links
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
    # Lanes: the first job of each is under way, the others wait behind it.
    head, tail = np.full(lanes, -1, np.int64), np.full(lanes, -1, np.int64)
    after = np.full(jobs, -1, np.int64)
    ordered = len(order_at) > 1
    ready = np.zeros(jobs if ordered else 0, np.bool_)
    done = order_at[:-1].copy()  # place in its order that each lane has come to
    # Routes: all messages are under way at once.
    shared = jobs if fair else 0
    route_of = np.full(jobs, -1, np.int32)
    flows, flowing = np.empty(shared, np.int64), 0
    rest, speed = np.zeros(shared), np.zeros(shared)
    scratch = FillScratch(np.empty(shared, np.int64), np.zeros(lanes), np.zeros(lanes, np.int64))
    since, stamp, changed = 0.0, -1, False  # `changed`: other messages flow than before
    sent = devices  # codes of events: a device's action, a lane's job (a flow: the first), arrivals
    arrived = devices + max(1, lanes)
    events = [(0.0, 0, np.int64(0)) for _ in range(0)]  # time, number, code
    seq = 0
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
        for f in range(feed_at[ended], feed_at[ended + 1]) if ended >= 0 else range(0):
            g = feed_to[f]
            missing[g, ended_m] -= 1
            if missing[g, ended_m] != 0:
                continue
            x = gate_job[g]
            if x < 0:
                d = _device(replicas_at, replicas_to, gate_stage[g], ended_m)
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
            job = x * m + ended_m
            job_cause[job] = reason
            lane = _device(replicas_at, replicas_to, job_from[x], ended_m)
            if job_pair[x] == 1:
                other = _device(replicas_at, replicas_to, job_to[x], ended_m)
                route_of[job] = route[lane, other]
                lane = -1 if lane == other else route_to[route_at[route[lane, other]]]
            begins = True
            if lane < 0:  # both ends are the same replica device
                job_start[job] = now
                heappush(events, (now, seq, np.int64(arrived + job)))
                seq += 1
                continue
            if fair:
                advance(flows, flowing, rest, speed, now - since)
                since, changed = now, True
                job_start[job] = now
                rest[job], speed[job] = job_work[x], 0.0
                flows[flowing] = job
                flowing += 1
                continue
            if ordered:
                ready[job] = True
                begins = order_to[done[lane]] == job and head[lane] < 0
            elif head[lane] >= 0:
                after[tail[lane]] = job
                begins = False
            tail[lane] = job
            if begins:
                head[lane] = job
                job_start[job] = now
                finish = now + job_work[x] / rate[lane]
                heappush(events, (finish, seq, np.int64(sent + lane)))
                seq += 1
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
                s = gate_stage[g]
                for r in range(replicas_at[s], replicas_at[s + 1]):
                    other = replicas_to[r]
                    k = at[other]
                    busy[other] = True
                    start[k], end[k] = now, now + duration[t]
                    if other != d:
                        cause[k] = i - 1 if i > first[d] else -1
                    heappush(events, (end[k], seq, np.int64(other)))
                    seq += 1
                continue
            if g >= 0 and missing[g, j] > 0:
                continue
            busy[d] = True
            start[i], end[i] = now, now + duration[t]
            # It waited for whoever ended last: the device's own previous action, or `reason`.
            own = i > first[d] and end[i - 1] == now
            cause[i] = i - 1 if own else reason
            heappush(events, (end[i], seq, np.int64(d)))
            seq += 1
        if changed and (len(events) == 0 or events[0][0] > now):
            changed, stamp = False, seq
            fill(flows, flowing, route_of, links, speed, scratch)
            if flowing > 0:
                finish = now + time_to_end(flows, flowing, rest, speed)
                heappush(events, (finish, seq, np.int64(sent)))
                seq += 1
        if len(events) == 0:
            break
        now, stamped, code = heappop(events)
        if code < sent:
            i = at[code]
            at[code] += 1
            busy[code] = False
            reason, ended, ended_m = i, np.int64(template[i]), microbatch[i]
            look[looking] = code
            looking += 1
            continue
        if code >= arrived:
            job = code - arrived
            job_end[job] = now
            reason, ended, ended_m = -2 - job, templates + job // m, job % m
            continue
        if fair:
            if stamp != stamped:
                continue  # others came or went since
            advance(flows, flowing, rest, speed, now - since)
            since, changed = now, True
            running = 0
            for f in range(flowing):
                job = flows[f]
                if rest[job] > SLACK * (job_work[job // m] + now * speed[job]):  # else rounding
                    flows[running] = job
                    running += 1
                    continue
                arrival = now + latency[route_of[job]]
                heappush(events, (arrival, seq, np.int64(arrived + job)))
                seq += 1
            flowing = running
        else:
            lane = code - sent
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
                heappush(events, (finish, seq, np.int64(sent + lane)))
                seq += 1
            arrival = now + (latency[route_of[job]] if route_of[job] >= 0 else 0.0)
            heappush(events, (arrival, seq, np.int64(arrived + job)))
            seq += 1
    return start, end, cause, job_start, job_end, job_cause, at - first[:-1]


@inner
def fill(flows, count, route_of, lanes, speed, scratch):
    """Set the speed of the first `count` of `flows` to the max–min fair one.

    All speeds grow alike until a link is full; those on it stop, the others grow on. `route_of` is
    the route of each flow, `lanes` the links of each route, and their bandwidths. O(different
    speeds · flows · links on a route).
    """
    rate, route_at, route_to = lanes.rate, lanes.route_at, lanes.route_to
    stopping, room, users = scratch
    for f in range(count):
        for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
            room[route_to[r]], users[route_to[r]] = rate[route_to[r]], 0
    for f in range(count):
        speed[flows[f]] = -1.0
        for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
            users[route_to[r]] += 1
    left = count
    while left > 0:
        least = np.inf
        for f in range(count):
            if speed[flows[f]] < 0:
                for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
                    least = min(least, room[route_to[r]] / users[route_to[r]])
        full = least * (1 + SLACK)
        stopped = 0
        for f in range(count):
            if speed[flows[f]] < 0:
                for r in range(route_at[route_of[flows[f]]], route_at[route_of[flows[f]] + 1]):
                    if room[route_to[r]] <= full * users[route_to[r]]:
                        speed[flows[f]] = least
                        stopping[stopped] = flows[f]
                        stopped += 1
                        break
        for f in range(stopped):
            for r in range(route_at[route_of[stopping[f]]], route_at[route_of[stopping[f]] + 1]):
                room[route_to[r]] -= least
                users[route_to[r]] -= 1
        left -= stopped


@inner
def advance(flows, count, rest, speed, elapsed):
    """Subtract what the flows send in `elapsed` time from `rest`, the work left of each."""
    for f in range(count):
        rest[flows[f]] = max(0.0, rest[flows[f]] - elapsed * speed[flows[f]])


@inner
def time_to_end(flows, count, rest, speed):
    """Return the time until the first flow ends."""
    least = np.inf
    for f in range(count):
        if rest[flows[f]] < least * speed[flows[f]]:
            least = rest[flows[f]] / speed[flows[f]]
    return least
