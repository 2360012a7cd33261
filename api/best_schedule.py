"""Optimal schedules of small pipelines, by an integer program that starts from heuristics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..formulations.schedule.milp import ScheduleInstance, StagePass, schedule_model
from ..instances import InputError, Status, gap_between
from ..instances.common.units import show_gap
from ..instances.model.summary import Summarised
from ..runtime.schedules import Action, Kind, Schedule, make_schedule, schedule_of
from ..runtime.simulate.result import Simulation
from ..runtime.simulate.simulator import simulate_stages
from ..runtime.simulate.stages import StageGraph
from ..solvers import Limits
from ..solvers.core.milp_driver import IntegerProgram, integer_program, solve_program
from ..solvers.core.search import Point, Search

#: The operations of each device, in order.
Orders = tuple[tuple[int, ...], ...]

#: Schedules that the search begins with, those of them that fit the memory.
STARTS = ("1f1b", "zb-h1", "zb-h2", "gpipe")


@dataclass(frozen=True, repr=False)
class BestSchedule(Summarised):
    """Best schedule found, with a lower bound on the makespan of any schedule.

    Parameters
    ----------
    schedule, simulation
        The schedule, and its execution in the simulator.
    bound
        No schedule has a lower makespan.
    status
        ``optimal`` (gap at most 1e-6) or ``feasible``.
    heuristics
        Makespan of each heuristic, `inf` where it needs more memory than there is.
    seconds
        Of the search.
    trace
        The search's progress: a point for each better schedule or bound.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.simulate import chain
    >>> best = stagecut.best_schedule(chain([1.0, 1.0], [1.0, 1.0]), microbatches=2)
    >>> best.status, best.gap, sorted(best.heuristics)
    ('optimal', 0.0, ['1f1b', 'gpipe', 'zb-h1', 'zb-h2'])
    """

    schedule: Schedule
    simulation: Simulation
    bound: float
    status: Status
    heuristics: dict[str, float]
    seconds: float
    trace: tuple[Point, ...] = field(repr=False)

    @property
    def objective(self) -> float:
        """The makespan."""
        return self.simulation.makespan

    @property
    def gap(self) -> float:
        """(makespan − bound) / makespan."""
        return gap_between(self.objective, self.bound)

    def summary(self) -> dict[str, object]:
        """Return status, makespan, bound and gap for display."""
        return {
            "status": self.status,
            "makespan": self.objective,
            "bound": self.bound,
            "gap": show_gap(self.gap),
            "microbatches": self.schedule.microbatches,
            "seconds": self.seconds,
        }


def best_schedule(
    stages: StageGraph,
    microbatches: int,
    *,
    activation_bytes: Sequence[float] | None = None,
    split: bool = True,
    limits: Limits | None = None,
) -> BestSchedule:
    """Return the schedule of least makespan, for a few stages and microbatches.

    Parameters
    ----------
    stages
        Without replicas; transfers keep their devices busy.
    microbatches
        Number of microbatches in a batch.
    activation_bytes
        Memory of each device for activations; default: that of the stages, less one version of
        the weights.
    split
        Whether the backward pass may be split into gradients of inputs and of weights.
    limits
        Default: no limits; some 4 stages with 6 microbatches take seconds, and the difficulty
        grows steeply.

    Returns
    -------
    BestSchedule
        The schedule, its simulation and the bound.

    Raises
    ------
    InputError
        If a stage has replicas, or the memory is too small for any order.

    References
    ----------
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, appendix: the program.

    Examples
    --------
    >>> import stagecut
    >>> stages = stagecut.runtime.simulate.chain([1.0, 1.0], [2.0, 2.0])
    >>> stagecut.best_schedule(stages, microbatches=2, split=False).simulation.makespan
    9.0
    """
    instance, actions = schedule_instance(stages, microbatches, activation_bytes, split=split)
    search: Search[Orders] = Search(limits or Limits(), instance.makespan)
    heuristics = {}
    for name, orders in usual_orders(stages, microbatches, actions).items():
        heuristics[name] = instance.makespan(orders)
        search.offer(orders)
    schedule_milp(instance, search)
    if search.best is None:
        raise InputError(
            f"best schedule: {search.infeasible_because or 'none found within the limit'}; "
            "give more memory or time"
        )
    found = schedule_of(
        [[actions[i] for i in order] for order in search.best],
        name="optimal" if search.status == "optimal" else "best known",
        microbatches=microbatches,
    )
    return BestSchedule(
        schedule=found,
        simulation=simulate_stages(stages, found),
        bound=min(search.bound, search.objective),
        status=search.status,
        heuristics=heuristics,
        seconds=search.seconds,
        trace=tuple(search.trace),
    )


def schedule_instance(
    stages: StageGraph,
    microbatches: int,
    activation_bytes: Sequence[float] | None,
    *,
    split: bool,
) -> tuple[ScheduleInstance, list[Action]]:
    """Return the scheduling instance of `best_schedule`, and each operation's action.

    InputError if a stage has replicas.
    """
    if any(len(devices) > 1 for devices in stages.replicas):
        raise InputError("best schedule: the stages have replicas; plan without replication")
    if activation_bytes is None:
        used = [0.0] * len(stages.devices)
        for s, (d,) in enumerate(stages.replicas):
            used[d] += float(stages.weight_bytes[s])
        pairs = zip(stages.capacity_bytes.tolist(), used, strict=True)
        activation_bytes = [max(0.0, capacity - taken) for capacity, taken in pairs]
    actions: list[Action] = []
    operations: list[StagePass] = []
    back = Kind.I if split else Kind.B
    for s, (d,) in enumerate(stages.replicas):
        has_forward, has_backward = stages.present[s].tolist()
        forward, backward = stages.duration[s].tolist()
        weight = stages.weight_share * float(stages.compute[s, 1]) if split else 0.0
        size = float(stages.activation_bytes[s]) if has_backward else 0.0
        for j in range(microbatches):
            parts = [(Kind.F, forward, size)] if has_forward else []
            if has_backward:
                parts.append((back, backward - weight, 0.0 if split else -size))
                parts += [(Kind.W, weight, -size)] if split else []
            for kind, duration, memory in parts:
                actions.append(Action(s, kind, j))
                operations.append(StagePass(str(actions[-1]), d, duration, memory))
    number = {action: i for i, action in enumerate(actions)}
    before = []
    for action, i in number.items():
        following = number.get(action._replace(microbatch=action.microbatch + 1))
        if following is not None:
            before.append((i, following))
        if action.kind == Kind.W:
            before.append((number[action._replace(kind=Kind.I)], i))
    for a, b in stages.edges.tolist():
        for j in range(microbatches):
            first = Action(a // 2, back if a % 2 else Kind.F, j)
            second = Action(b // 2, back if b % 2 else Kind.F, j)
            before.append((number[first], number[second]))
    return ScheduleInstance(tuple(operations), tuple(before), tuple(activation_bytes)), actions


def usual_orders(
    stages: StageGraph, microbatches: int, actions: Sequence[Action]
) -> dict[str, Orders]:
    """Return the orders of the heuristics, by name; those that `actions` can express."""
    number = {action: i for i, action in enumerate(actions)}
    found = {name: _orders(make_schedule(name, stages, microbatches), number) for name in STARTS}
    return {name: orders for name, orders in found.items() if orders is not None}


def _orders(schedule: Schedule, number: dict[Action, int]) -> Orders | None:
    """Return a schedule's operations by device; None if the operations cannot express it.

    Where passes are split, a whole backward pass becomes I, then W.
    """
    orders = []
    for d in range(len(schedule.actions)):
        order: list[int] = []
        for action in schedule.of(d):
            if action in number:
                order.append(number[action])
                continue
            halves = [action._replace(kind=kind) for kind in (Kind.I, Kind.W)]
            if action.kind != Kind.B or not all(half in number for half in halves):
                return None  # a split schedule where backwards are whole
            order += [number[half] for half in halves]
        orders.append(tuple(order))
    return tuple(orders)


def schedule_milp(instance: ScheduleInstance, search: Search[Orders]) -> None:
    """Find the order of least makespan, starting from the best one of the search.

    Without one, the horizon is the time of all operations one after the other.
    """
    search.raise_bound(max(map(instance.work, range(len(instance.own)))), "work of one device")
    solve_program(lambda: _program(instance, search), search)


def _program(instance: ScheduleInstance, search: Search[Orders]) -> IntegerProgram[Orders]:
    """State the program for the best order known."""
    horizon = search.objective
    if not math.isfinite(horizon):
        horizon = sum(operation.duration for operation in instance.operations)
    program = integer_program(
        schedule_model(instance, horizon),
        search.best,
        origin="schedule MILP",
        infeasible="no order keeps the memory of every device",
    )
    read = program.read
    assert read is not None
    return replace(program, read=lambda x: tuple(map(tuple, read(x))))
