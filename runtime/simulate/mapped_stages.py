"""A mapped plan as stages for the simulator, and its topology as a network.

Microbatch j runs on one chain of replicas from the first stage to the last: each sends to the
replica of the next stage that the plan matched it with. Two ways to move data:

- As the mapping's definition has it (`HostMemory`): a stage is busy for its compute and for the
  messages of its slowest replica, activations there and gradients back; receivers pay nothing, and
  nothing competes. The asynchronous schedule then runs at max T_s / (m R) per microbatch, in mode
  ``both`` and, but for the all-reduce, in ``p2p``; ``allr`` leaves out messages, which are always
  simulated.
- Over the topology (`topology_links`): messages run along their routes beside compute, and those
  that share a link in one direction compete for it. All-reduces take the time of the definition;
  their traffic does not compete with messages.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...instances import DeviceMapping, Plan, ReplicaPlacement, Workload, stage_costs
from ...instances.common.arrays import Floats, Ints, frozen
from ...instances.common.units import TIME_UNITS
from ...instances.model.kept_bytes import kept_bytes
from ...instances.model.stage_costs import accelerator_seconds
from ..verify.mapping import link_table, stage_reports
from .network import Links
from .stages import BACKWARD, FORWARD, StageGraph


def stages_of_mapping(
    workload: Workload,
    plan: Plan,
    problem: DeviceMapping,
    solution: ReplicaPlacement,
    *,
    weight_share: float = 0.5,
) -> StageGraph:
    """Return the stages of a mapped plan, priced by the mapping's definition.

    Raises
    ------
    InputError
        If the plan was made for another workload, or that does not say times and sizes.
    """
    plan.check_made_for(workload)
    count, unit = problem.stages, TIME_UNITS[workload.time_unit]
    costs = stage_costs(workload, solution.stage, count)
    side = workload.backward.astype(np.int64)
    compute, receive, send = (np.zeros((count, 2)) for _ in range(3))
    np.add.at(compute, (solution.stage, side), accelerator_seconds(workload) / unit)
    trains = bool(workload.backward.any())
    replicas = chains(solution)
    routes = problem.topology.routes
    edges: dict[tuple[int, int], float] = {}
    for s in range(count - 1):
        sizes = float(costs.forward_bytes[s]), float(costs.backward_bytes[s] * problem.gradients)
        edges[2 * s, 2 * s + 2] = sizes[FORWARD]
        if trains:
            edges[2 * s + 3, 2 * s + 1] = sizes[BACKWARD]
        pairs = np.array([replicas[s], replicas[s + 1]])
        latency = routes.latency_s[pairs[0], pairs[1]]
        bandwidth = routes.bytes_per_s[pairs[0], pairs[1]]
        there, back = ((latency + size / bandwidth) * (size > 0) / unit for size in sizes)
        slowest = int((there + back).argmax())
        send[s, FORWARD], receive[s, BACKWARD] = there[slowest], back[slowest]
    if trains:
        edges |= {(2 * s, 2 * s + 1): 0.0 for s in range(count)}
    pairs_of_tasks = sorted(edges)
    present = np.ones((count, 2), np.bool_)
    present[:, BACKWARD] = trains
    rank = np.zeros(2 * count, np.int64)
    rank[0::2], rank[1::2] = np.arange(count), 2 * count - 1 - np.arange(count)
    weight, resident, activation = kept_bytes(workload)
    reports = stage_reports(costs, problem, solution.slots, solution.sends_to)
    nodes = [np.flatnonzero(solution.stage == s) for s in range(count)]

    def summed(values: Floats) -> Floats:
        return frozen(np.bincount(solution.stage, values, count), np.float64)

    return StageGraph(
        devices=problem.topology.devices,
        replicas=replicas,
        compute=frozen(compute, np.float64),
        present=frozen(present, np.bool_),
        receive=frozen(receive, np.float64),
        send=frozen(send, np.float64),
        edges=frozen(np.array(pairs_of_tasks, np.int64).reshape(-1, 2), np.int64),
        payload_bytes=frozen([edges[pair] for pair in pairs_of_tasks], np.float64),
        rank=frozen(rank, np.int64),
        weight_bytes=summed(weight),
        activation_bytes=summed(activation),
        resident_bytes=summed(resident),
        nodes=tuple((_of_side(own, side, FORWARD), _of_side(own, side, BACKWARD)) for own in nodes),
        capacity_bytes=frozen(
            [plan.cluster.kinds[device.kind].memory_bytes for device in plan.cluster.devices],
            np.float64,
        ),
        weight_share=weight_share,
        time_unit=workload.time_unit,
        all_reduce=frozen([report.allreduce_s / unit for report in reports], np.float64),
        batch=problem.microbatches * problem.replicas,
    )


def chains(solution: ReplicaPlacement) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each stage so that the r-th sends to the r-th of the next stage."""
    places = np.arange(solution.slots.shape[1])
    replicas = [solution.slots[0]]
    for sends, row in zip(solution.sends_to, solution.slots[1:], strict=True):
        places = sends[places]
        replicas.append(row[places])
    return tuple(tuple(row.tolist()) for row in replicas)


def topology_links(problem: DeviceMapping, solution: ReplicaPlacement) -> Links:
    """Return the topology as a network, for the messages between the plan's stages.

    Each link carries data in both directions at once; messages that share a link in one direction
    get max–min fair rates.

    Notes
    -----
    O(D² + messages · hops), D the devices of the topology.
    """
    topology = problem.topology
    table = link_table(topology)
    names = [*topology.devices, *(f"switch {w}" for w in range(topology.switches))]
    number: dict[tuple[int, int], int] = {}
    routes: list[tuple[int, ...]] = []
    route = np.full((topology.size, topology.size), -1, np.int64)
    rows = chains(solution)
    for here, there in pairwise(rows):
        for pair in zip(here, there, strict=True):
            for a, b in (pair, pair[::-1]):
                hops = tuple(topology.routes.hops(a, b))
                route[a, b] = len(routes)
                routes.append(tuple(number.setdefault(hop, len(number)) for hop in hops))
    return Links(
        route,
        np.array([table[hop][0] for hop in number]),
        np.array([table[hop][1] for hop in number]),
        sharing="fair",
        routes=tuple(routes),
        names=tuple(f"{names[a]} → {names[b]}" for a, b in number),
    )


def _of_side(nodes: Ints, side: Ints, which: int) -> tuple[int, ...]:
    return tuple(nodes[side[nodes] == which].tolist())
