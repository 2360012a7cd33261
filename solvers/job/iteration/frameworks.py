"""Plans that cost next to nothing: the splits that frameworks make by default, and equal parts.

Each rule cuts the modules of a workload (`formulations/job/modules.py`) into P stages, as
many as the problem has devices, times chunks, for; stage s is on accelerator s mod D. A rule sees
layers, sizes or times of modules, and neither transfers nor the schedule.

    megatron              equal numbers of blocks; the embedding and the head count as a block each
                          or not, whichever divides evenly and is faster
    vllm                  equal numbers of blocks; what is left over goes to the stages before the
                          last, from behind
    torchtitan            equal numbers of blocks, the input and the output counted as one each;
                          what is left over goes to the first stages
    deepspeed-uniform     equal numbers of modules; what is left over goes to the first stages
    deepspeed-parameters  the largest number of parameters of a stage is least
    deepspeed-type        the largest number of modules of a stage whose name matches a regular
                          expression is least; default: of blocks
    accelerate-balanced   devices are filled one after the other, each up to an equal part of the
                          weights and 1.25 times the largest block
    block-dp              the longest compute of a stage is least, by dynamic programming

Where a node of a module is needed earlier, it moves to the stage of its first user: no stage ever
waits for a later one.

References
----------
Megatron Core, `TransformerConfig`: account_for_embedding_in_pipeline_split,
account_for_loss_in_pipeline_split. vLLM, pull request 13839. torchtitan, pull requests 1103 and
1416. DeepSpeed, tutorial "Pipeline Parallelism", load balancing. Accelerate, "Big model inference",
designing a device map; pull requests 534 and 583. Min-max over blocks: PipeDream (SOSP 2019) and
the planners after it, here without replicas and transfers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from ....formulations.job.line import Line, line
from ....formulations.job.modules import Modules, block_of, modules
from ....formulations.task import Task
from ....instances import Cluster, PipelineJob, PipelinePlacement, Solution
from ....instances.common.arrays import Floats, Ints, even_ends
from ...core.search import Search

#: Part of the largest block that Accelerate adds to each device's part of the weights.
HEADROOM = 1.25


#: Part of the time for all rules, where a search begins with their splits.
RULES_SHARE = 0.25


class Refused(Exception):
    """Exception: a rule has no split, for a reason in one line."""


#: Rule: reads modules, stages and options; yields each split as numbers of modules by stage.
Rule = Callable[[Modules, int, str], Iterator[list[int]]]


def megatron(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield the even splits of blocks, with and without input and output counted as a block."""
    even = [
        (total // stages, first, last)
        for first in range(min(found.inputs, 1) + 1)
        for last in range(min(found.outputs, 1) + 1)
        if not (total := found.blocks + first + last) % stages
    ]
    if not even:
        raise Refused(f"{found.blocks} blocks cannot be divided evenly into {stages} stages")
    for size, first, last in even:
        blocks = [size] * stages
        blocks[0] -= first
        blocks[-1] -= last
        yield _around(found, blocks)


def vllm(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield equal numbers of blocks; what is left over goes to the stages before the last."""
    size, left = divmod(found.blocks, stages)
    yield _around(
        found, [size + (s >= stages - 1 - left) * (s < stages - 1) for s in range(stages)]
    )


def torchtitan(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield equal numbers of blocks, with input and output counted as one each."""
    first, last = min(found.inputs, 1), min(found.outputs, 1)
    blocks = _equal(found.blocks + first + last, stages)
    blocks[0] -= first
    blocks[-1] -= last
    yield _around(found, blocks)


def deepspeed_uniform(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield equal numbers of modules."""
    yield _equal(found.size, stages)


def deepspeed_parameters(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield the split whose largest number of parameters is least."""
    yield balanced(found.parameters, stages)


def deepspeed_type(found: Modules, stages: int, pattern: str) -> Iterator[list[int]]:
    """Yield the split with the least maximum of modules that match; without pattern, of blocks."""
    counted = np.zeros(found.size)
    counted[found.inputs : found.inputs + found.blocks] = 1
    if pattern:
        counted = np.array([bool(re.search(pattern, m, re.IGNORECASE)) for m in found.names]) * 1.0
    if not counted.any():
        raise Refused(f"no module's name matches {pattern!r}; one is {found.names[found.inputs]}")
    yield balanced(counted, stages)


def block_dp(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield the split whose longest compute is least."""
    unable = np.flatnonzero(np.isinf(found.compute))
    if len(unable):
        raise Refused(f"not every device can take module {found.names[unable[0]]}")
    yield balanced(found.compute, stages)


def accelerate_balanced(found: Modules, stages: int, _: str) -> Iterator[list[int]]:
    """Yield the split that fills one device after the other; some may stay empty.

    The first device keeps room for the largest module that is still to come. What does not fit on
    a device goes on with the next, and the last takes all that is left.
    """
    size = found.weight_bytes
    largest = size[found.inputs : found.inputs + found.blocks].max()
    limit = size.sum() / stages + HEADROOM * largest
    counts, filled, s = [0] * stages, 0.0, 0
    for m in range(found.size):
        while s < stages - 1 and filled + size[m] + (s == 0) * size[m + 1 :].max(initial=0) > limit:
            s, filled = s + 1, 0.0
        counts[s] += 1
        filled += float(size[m])
    yield [count for count in counts if count]


#: Rules by the names of their methods.
BY_NAME: dict[str, Rule] = {
    "megatron": megatron,
    "vllm": vllm,
    "torchtitan": torchtitan,
    "deepspeed-uniform": deepspeed_uniform,
    "deepspeed-parameters": deepspeed_parameters,
    "deepspeed-type": deepspeed_type,
    "accelerate-balanced": accelerate_balanced,
    "block-dp": block_dp,
}


def balanced(weight: Floats, parts: int) -> list[int]:
    """Return the numbers of items of consecutive parts, none empty, with the least maximum.

    Of several such splits the one with the least sum of squares, which is the most even one; of
    several such the one whose first parts are longest.

    Examples
    --------
    >>> balanced(np.array([5.0, 1.0, 1.0, 1.0, 1.0, 1.0]), 3)
    [1, 3, 2]
    """
    n, ahead = len(weight), np.concatenate(([0.0], np.cumsum(weight)))
    part = ahead[None, :] - ahead[:, None]  # of the items from the row to before the column
    part[np.tril_indices(n + 1)] = np.inf
    worst = np.full(n + 1, np.inf)
    worst[0] = 0.0
    for _ in range(parts):
        worst = np.maximum(worst[:, None], part).min(axis=0)
    square = np.where(part <= worst[n] * (1 + 1e-12), part**2, np.inf)
    cost = np.full(n + 1, np.inf)
    cost[0] = 0.0
    cuts = []
    for _ in range(parts):
        total = cost[:, None] + square
        cost = total.min(axis=0)
        cuts.append(n - (total <= cost * (1 + 1e-12))[::-1].argmax(axis=0))
    ends = [n]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    return np.diff(ends[::-1]).tolist()


def _equal(items: int, stages: int) -> list[int]:
    size, left = divmod(items, stages)
    return [size + (s < left) for s in range(stages)]


def _around(found: Modules, blocks: list[int]) -> list[int]:
    """Return the numbers of modules, given those of blocks: input first, output last."""
    counts = list(blocks)
    counts[0] += found.inputs
    counts[-1] += found.outputs
    return counts


def splits(rule: Rule, task: Task[PipelineJob], statement: Line) -> Iterator[PipelinePlacement]:
    """Yield the splits of a rule, whether or not they fit into memory; `Refused` if none."""
    devices = _devices(task)
    order = task.problem.order
    stages = len(order.device) if order else len(devices) * task.problem.chunks_per_device
    found = _modules(task, statement, stages)
    for counts in rule(found, stages, task.options.get("type", "")):
        stage = _stages(statement, found, counts)
        where = task.problem.devices_of(_allowed(task, len(counts)))
        yield PipelinePlacement(stage, tuple(devices[p] for p in where))


def default_split(name: str, task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Offer the split of the rule `name`, or note in one line why it gives none."""
    try:
        with search.phase("build"):
            statement = line(task)
        for placement in splits(BY_NAME[name], task, statement):
            if not search.offer(placement) and np.isinf(search.judge(placement)):
                raise Refused(_why_not(task, placement))
    except Refused as reason:
        search.note(f"{search.method}: {reason}")


def offer_defaults(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Offer equal parts, then the splits of all rules, so that the search ends with no worse."""
    statement = line(task)
    first_plans(task, statement, search)
    share = search.part(RULES_SHARE)
    for rule in BY_NAME.values():
        with suppress(Refused):
            for placement in splits(rule, task, statement):
                if share.should_stop():
                    return
                search.offer(placement)


def _devices(task: Task[PipelineJob]) -> list[int]:
    """Return as many devices as a chain may have: accelerators if there are any, in order."""
    able, problem = accelerators(task.cluster), task.problem
    if problem.order:
        needed = max(problem.order.device) + 1
        if len(able) < needed:
            raise Refused(f"the schedule is for {needed} devices, and there are {len(able)}")
        return able
    chunks, most = problem.chunks_per_device, problem.placement_rules.max_stages
    able = able if most is None else able[: most // chunks]
    if not able:
        raise Refused(f"each device holds {chunks} stages, and at most {most} are allowed")
    return able


def _allowed(task: Task[PipelineJob], stages: int) -> int:
    """Return the number of stages, if the schedule can have so many."""
    problem = task.problem
    chunks, microbatches = problem.chunks_per_device, problem.batch
    if problem.order:
        if stages != len(problem.order.device):
            raise Refused(f"the schedule is of {len(problem.order.device)} stages, not of {stages}")
        return stages
    size, left = divmod(stages, chunks)
    if left:
        raise Refused(f"its {stages} stages are no multiple of {chunks} chunks")
    if chunks > 1 and microbatches % size:
        raise Refused(
            f"{problem.schedule} needs a multiple of {size} microbatches for {size} devices, "
            f"and there are {microbatches}"
        )
    return stages


def _modules(task: Task[PipelineJob], statement: Line, stages: int) -> Modules:
    workload = task.workload
    found = modules(workload, statement, stages)
    if found is None:
        traced = workload.provenance.get("granularity") == "operators"
        again = traced and not any("/" in name for name in workload.names)
        raise Refused(
            "the names of the nodes name no modules such as layers.0.mlp"
            + ("; profile the model again, so that its operators name theirs" if again else "")
        )
    if found.size < stages:
        named = {block_of(name) for name in workload.names} - {""}
        joined = "; colours or edges join the others" if len(named) > found.blocks else ""
        raise Refused(f"{found.size} modules are too few for {stages} stages{joined}")
    return found


def _stages(statement: Line, found: Modules, counts: Sequence[int]) -> Ints:
    """Return the stage of each node, units moved to the stage of their first user."""
    if min(counts) < 0:
        raise Refused("the first or last stage would hold fewer than no blocks")
    of_module = np.repeat(np.arange(len(counts)), counts)
    stage = of_module[found.module_of].tolist()
    graph = statement.graph
    for u in reversed(statement.orders[0].tolist()):
        stage[u] = min([stage[u], *(stage[v] for v in graph.successors[u])])
    empty = set(range(len(counts))) - set(stage)
    if empty:
        raise Refused(f"stage {min(empty)} of {len(counts)} would have no nodes")
    return graph.expand(stage)


def _why_not(task: Task[PipelineJob], placement: PipelinePlacement) -> str:
    kind = task.costs.kind_of[placement.device]
    unable = np.flatnonzero(np.isinf(task.costs.compute[kind, np.arange(task.workload.n)]))
    if len(unable):
        return f"no accelerator supports node {task.workload.ids[unable[0]]}"
    return "its plan does not fit into memory under this schedule"


def first_plans(task: Task[PipelineJob], statement: Line, search: Search[Solution]) -> None:
    """Offer equal parts of the compute of a topological order, on all devices and on one."""
    devices = accelerators(task.cluster)
    where = {size: task.problem.devices_of(size) for size in statement.sizes()}
    sizes = [size for size in where if max(where[size]) < len(devices)]
    for size in sorted({*sizes[:1], *sizes[-1:]}, reverse=True):
        stage = statement.graph.expand(_equal_parts(statement, size))
        search.offer(PipelinePlacement(stage, tuple(devices[p] for p in where[size])))


def accelerators(cluster: Cluster) -> list[int]:
    """Return the devices that are no hosts; if there are none, all; in order."""
    every = list(enumerate(cluster.devices))
    able = [d for d, device in every if not cluster.kinds[device.kind].host]
    return able or [d for d, _ in every]


def _equal_parts(statement: Line, parts: int) -> Ints:
    """Return the part of each unit, none empty."""
    order, n = statement.orders[0], statement.graph.size
    work = np.nan_to_num(statement.compute.sum(axis=1).min(axis=0)[order], posinf=0.0)
    part = np.zeros(n, np.int64)
    ends = even_ends(np.cumsum(work), parts)
    part[order] = np.searchsorted(ends, np.arange(n), side="right")
    return part
