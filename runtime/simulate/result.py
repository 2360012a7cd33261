"""Result of a simulation: times, steady state, critical path, and memory of devices over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...instances.common.arrays import Floats, Ints, frozen
from ...instances.common.units import show_bytes, show_percent
from ...instances.model.schedule import MOST_ACTIONS
from ...instances.model.summary import Summarised
from ..schedules import SCHEDULES
from ..schedules.actions import PER_BATCH, Action, Kind, Schedule, WeightVersions
from ..verify.rules import usable_bytes
from .network import HostMemory, Network
from .program import SimulationProgram
from .stages import BACKWARD, FORWARD, StageGraph

if TYPE_CHECKING:
    import pandas as pd

#: Share of the makespan below which a link's work is rounding.
UNOCCUPIED = 1e-12


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Memory of one device, in bytes."""

    weights: float  # resident memory of the device's stages, with weights in one version
    versions: float  # further versions of the weights
    # times, activations: a step function: `activations[i]` bytes from `times[i]` on
    times: Floats
    activations: Floats
    in_flight: dict[int, int]  # most microbatches held at once, by stage
    capacity: float  # memory of the device

    @property
    def peak_activations(self) -> float:
        """Largest memory of activations."""
        return float(self.activations.max(initial=0.0))

    @property
    def peak(self) -> float:
        """Largest memory in use."""
        return self.weights + self.versions + self.peak_activations


def memory_over_time(
    stages: StageGraph, schedule: Schedule, starts: list[Floats], ends: list[Floats]
) -> tuple[DeviceMemory, ...]:
    """Return the memory of each device, given starts and ends of its actions.

    A microbatch's activations are held from the start of its forward to the end of its backward, or
    of its weight gradient where the backward is split; without a backward pass, to the end of the
    forward. Weights have one version, two (2BW), or one per microbatch in flight (PipeDream).
    O(actions · log actions).
    """
    result = []
    for d, table in enumerate(schedule.actions):
        stage, kind = table[:, 0], table[:, 1]
        last = ((kind == Kind.B) | (kind == Kind.W)) & stages.present[stage, FORWARD]
        last |= (kind == Kind.F) & ~stages.present[stage, BACKWARD]
        begin = kind == Kind.F
        times = np.concatenate((starts[d][begin], ends[d][last]))
        owner = np.concatenate((stage[begin], stage[last]))
        change = np.concatenate((np.ones(int(begin.sum())), -np.ones(int(last.sum()))))
        # at one time, in the order of the actions: one that takes no time begins before it ends
        place = np.concatenate((2 * np.flatnonzero(begin), 2 * np.flatnonzero(last) + 1))
        order = np.lexsort((place, times))
        times, owner, change = times[order], owner[order], change[order]
        held = np.cumsum(change * stages.activation_bytes[owner])
        flying = _most(owner, change)
        own = [s for s, devices in enumerate(stages.replicas) if d in devices]
        extra = {
            WeightVersions.ONE: 0,
            WeightVersions.TWO: 1,
            WeightVersions.IN_FLIGHT: -1,
        }[WeightVersions(schedule.versions)]
        result.append(
            DeviceMemory(
                weights=float(stages.resident_bytes[own].sum()),
                versions=float(
                    sum(
                        (flying.get(s, 1) - 1 if extra < 0 else extra) * stages.weight_bytes[s]
                        for s in own
                        if stages.present[s, BACKWARD]
                    )
                ),
                times=frozen(times, np.float64),
                activations=frozen(held, np.float64),
                in_flight=flying,
                capacity=float(stages.capacity_bytes[d]),
            )
        )
    return tuple(result)


def _most(owner: Ints, change: Floats) -> dict[int, int]:
    """Return the most microbatches that each stage holds at once."""
    if not len(owner):
        return {}
    order = np.argsort(owner, kind="stable")
    stages, first = np.unique(owner[order], return_index=True)
    most = np.maximum.reduceat(np.cumsum(change[order]), first)
    return dict(zip(stages.tolist(), most.astype(int).tolist(), strict=True))


class CriticalStep(NamedTuple):
    """Step of a critical path: its lane, action or transfer, start and end."""

    where: str
    what: str
    start: float
    end: float


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Summarised):
    """Simulated run of a plan; all times in the workload's unit.

    Parameters
    ----------
    stages, schedule, network
        Stages, schedule and network of the run.
    starts, ends
        Per device, shape (n,): start and end of each action of `schedule`.
    makespan
        End of the last action or transfer.
    memory
        Memory of each device.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.simulate import chain, simulate_stages
    >>> run = simulate_stages(chain([1.0, 1.0]), "inference", 4)
    >>> run.makespan, run.time_per_sample
    (5.0, 1.0)
    """

    stages: StageGraph
    schedule: Schedule
    network: Network
    starts: tuple[Floats, ...]
    ends: tuple[Floats, ...]
    makespan: float
    memory: tuple[DeviceMemory, ...]
    program: SimulationProgram
    causes: Ints
    job_start: Floats
    job_end: Floats
    job_cause: Ints
    longer: Callable[[int], Simulation]  # simulates the schedule of more microbatches

    @cached_property
    def time_per_sample(self) -> float:
        """Time per microbatch in steady state.

        For schedules that repeat a round of work it is the interval between repetitions of the
        slowest action, far from start and end; for others, such as GPipe, the time that further
        microbatches add to the makespan; for a schedule that is not one of `SCHEDULES`, and so
        cannot be made longer, the interval in the middle of it, or the work of the busiest device
        per microbatch if that is more.
        """
        return steady_state(self)

    @cached_property
    def busy(self) -> Floats:
        """Shape (D,): time that each device computes or moves data itself."""
        return np.array([float((e - s).sum()) for s, e in zip(self.starts, self.ends, strict=True)])

    @cached_property
    def transfer(self) -> Floats:
        """Shape (D,): time of `busy` in which a device moves data."""
        moved = self.program.inputs.sum(axis=1)
        total = np.zeros(len(self.starts))
        for d, table in enumerate(self.schedule.actions):
            kind, stage = table[:, 1], table[:, 0]
            side = (kind == Kind.B) | (kind == Kind.I)
            inside = side | (kind == Kind.F)
            total[d] = moved[(2 * stage + side)[inside]].sum()
            apart = kind == Kind.REDUCE_GRAD
            total[d] += (self.ends[d] - self.starts[d])[apart].sum()
        return total

    @cached_property
    def used(self) -> list[int]:
        """Devices with actions; where stages have replicas, stage by stage."""
        used = [d for d, table in enumerate(self.schedule.actions) if len(table)]
        rings = self.stages.replicas
        if all(len(ring) == 1 for ring in rings):
            return used
        place = {
            d: (s, r) for s, ring in reversed(list(enumerate(rings))) for r, d in enumerate(ring)
        }
        return sorted(used, key=place.__getitem__)

    @cached_property
    def bubbles(self) -> Floats:
        """Shape (D,): share of the makespan in which each device is idle."""
        if not self.makespan:
            return np.zeros(len(self.starts))
        return 1 - self.busy / self.makespan

    @property
    def bubble(self) -> float:
        """Mean of `bubbles` over the devices in use."""
        return float(self.bubbles[self.used].mean())

    @property
    def peak_memory(self) -> dict[str, float]:
        """Most bytes in use at once, by device."""
        names = self.stages.devices
        return {name: m.peak for name, m in zip(names, self.memory, strict=True)}

    @property
    def over_memory(self) -> list[str]:
        """A line for each device whose peak exceeds its memory."""
        return [
            f"{name} needs {show_bytes(m.peak)} at its peak, {show_bytes(m.peak - m.capacity)} "
            f"more than its {show_bytes(m.capacity)}"
            for name, m in zip(self.stages.devices, self.memory, strict=True)
            if m.peak > usable_bytes(m.capacity)
        ]

    def jobs(self) -> Iterator[tuple[int, int, str, float, float]]:
        """Yield job, microbatch, lane, start and end of each transfer beside compute.

        A transfer comes once per link on its route.
        """
        m = self.schedule.microbatches
        for index in range(len(self.job_start)):
            begin, end = float(self.job_start[index]), float(self.job_end[index])
            if np.isfinite(end) and end > begin:
                for lane in self.lanes_of(index):
                    yield index // m, index % m, self.program.names[lane], begin, end

    def lanes_of(self, job: int) -> list[int]:
        """Return the lanes of a job; none if it stays on its device."""
        x, j = divmod(job, self.schedule.microbatches)
        jobs, lanes = self.program.jobs, self.program.lanes
        source = self.stages.replicas[jobs.source[x]]
        if not jobs.pair[x]:
            return [source[j % len(source)]]
        target = self.stages.replicas[jobs.target[x]]
        route = int(lanes.route[source[j % len(source)], target[j % len(target)]])
        if route < 0:
            return []
        links: list[int] = lanes.route_to[slice(*lanes.route_at[route : route + 2])].tolist()
        return links

    def job_name(self, x: int) -> str:
        """Return the name of a transfer, such as ``F0 → F1``."""
        names = [f"{'FB'[task % 2]}{task // 2}" for task in range(2 * self.stages.count)]
        jobs, gates = self.program.jobs, self.program.gates
        task = int(jobs.task[x])
        target = gates.feed_to[gates.feed_at[len(self.program.actions.duration) + x]]
        if jobs.pair[x]:
            return f"{names[task]} → {names[target]}"
        return f"{names[task]} {'in' if target == task else 'out'}"

    @cached_property
    def link_load(self) -> pd.DataFrame:
        """One row per link or copy engine in use: transfers, busy time, utilisation.

        Busy is the time of its transfers if each had the link to itself.
        """
        import pandas as pd

        count = np.zeros(len(self.program.names), dtype=np.int64)
        busy = np.zeros(len(self.program.names))
        for index in np.flatnonzero(np.isfinite(self.job_end)).tolist():
            for lane in self.lanes_of(index):
                count[lane] += 1
                work = self.program.jobs.work[index // self.schedule.microbatches]
                busy[lane] += work / self.program.lanes.rate[lane]
        frame = pd.DataFrame(
            {
                "transfers": count,
                "busy": busy,
                "utilisation": busy / self.makespan if self.makespan else busy,
            },
            index=pd.Index(self.program.names, name="link"),
        )
        return frame[frame["transfers"] > 0]

    @property
    def busiest_link(self) -> tuple[str, float] | None:
        """The link with most work, and the share of the makespan that it is busy.

        None if no link is busy, as in training jobs, whose messages are latencies alone.
        """
        table = self.link_load
        if isinstance(self.network, HostMemory) or table.empty:
            return None
        most = int(table["busy"].to_numpy().argmax())
        share = float(table["utilisation"].to_numpy()[most])
        return (str(table.index[most]), share) if share > UNOCCUPIED else None

    def critical_path(self) -> list[CriticalStep]:
        """Return the critical path, from the beginning to the end.

        Each step began when the one before it had ended, so that shortening any other action does
        not shorten the run.
        """
        first, m = self.program.actions.first, self.schedule.microbatches
        start = np.concatenate(self.starts) if self.starts else np.zeros(0)
        end = np.concatenate(self.ends) if self.ends else np.zeros(0)
        steps: list[CriticalStep] = []
        at = int(np.argmax(end)) if len(end) else -1
        if len(self.job_end) and self.job_end[np.isfinite(self.job_end)].max(initial=0) > end.max():
            at = -2 - int(np.argmax(np.where(np.isfinite(self.job_end), self.job_end, -1)))
        while at != -1:
            if at >= 0:
                device = int(np.searchsorted(first, at, side="right")) - 1
                row = self.schedule.actions[device][at - first[device]]
                text = str(Action(int(row[0]), Kind(row[1]), int(row[2])))
                steps.append(
                    CriticalStep(
                        self.stages.devices[device], text, float(start[at]), float(end[at])
                    )
                )
                at = int(self.causes[at])
            else:
                job = -2 - at
                lanes = [self.program.names[lane] for lane in self.lanes_of(job)]
                where = ", ".join(lanes) or "same device"
                text = f"{self.job_name(job // m)}, microbatch {job % m}"
                steps.append(
                    CriticalStep(where, text, float(self.job_start[job]), float(self.job_end[job]))
                )
                at = int(self.job_cause[job])
        return steps[::-1]

    def summary(self) -> dict[str, object]:
        """Return schedule, microbatches, devices and times for display."""
        return {
            "schedule": self.schedule.name,
            "microbatches": self.schedule.microbatches,
            "devices": len(self.used),
            "makespan": self.makespan,
            "time_per_sample": self.time_per_sample,
            "bubble": show_percent(self.bubble, 3),
            "time_unit": self.stages.time_unit,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per device.

        Returns
        -------
        pandas.DataFrame
            Columns: actions, compute, transfer, idle, bubble, utilisation (compute's share of the
            makespan), begin, end, in_flight (most microbatches held by one stage), weight_bytes
            (all resident memory), version_bytes, activation_bytes and peak_bytes.
        """
        import pandas as pd

        ran = [len(table) > 0 for table in self.schedule.actions]
        compute = self.busy - self.transfer
        columns = {
            "actions": [len(table) for table in self.schedule.actions],
            "compute": compute,
            "transfer": self.transfer,
            "idle": self.makespan - self.busy,
            "bubble": self.bubbles,
            "utilisation": compute / self.makespan if self.makespan else compute,
            "begin": [s[0] if r else np.nan for s, r in zip(self.starts, ran, strict=True)],
            "end": [e[-1] if r else np.nan for e, r in zip(self.ends, ran, strict=True)],
            "in_flight": [max(m.in_flight.values(), default=0) for m in self.memory],
            "weight_bytes": [m.weights for m in self.memory],
            "version_bytes": [m.versions for m in self.memory],
            "activation_bytes": [m.peak_activations for m in self.memory],
            "peak_bytes": [m.peak for m in self.memory],
        }
        return pd.DataFrame(columns, index=pd.Index(self.stages.devices, name="device"))

    def actions_to_pandas(self) -> pd.DataFrame:
        """Return one row per action: device, stage, kind, microbatch, start, end."""
        import pandas as pd

        frames = [
            pd.DataFrame(
                {
                    "device": self.stages.devices[d],
                    "stage": table[:, 0],
                    "kind": [Kind(k).name for k in table[:, 1].tolist()],
                    "microbatch": table[:, 2],
                    "start": self.starts[d],
                    "end": self.ends[d],
                }
            )
            for d, table in enumerate(self.schedule.actions)
            if len(table)
        ]
        return pd.concat(frames, ignore_index=True)


def steady_state(run: Simulation) -> float:
    """Return the time per microbatch in steady state, measured on runs that are long enough.

    For cyclic schedules it is the interval between repetitions of the slowest action. For others,
    and where replicas repeat together only after more microbatches than can be simulated, it is the
    time that further microbatches add to the makespan.
    """
    schedule = run.schedule
    m, repeat = schedule.microbatches, schedule.repeat
    if schedule.name == "single":
        return run.makespan
    if schedule.name in SCHEDULES and schedule.depth is not None:
        least = 6 * schedule.depth + 12
        whole = (-(-least // repeat) + 4) * repeat
        for number in (whole, least) if repeat > least else (whole,):
            if schedule.size * (2 * number / m) > MOST_ACTIONS:
                continue
            if schedule.cyclic and number == whole:
                last = whole - 1 - schedule.depth
                return _spacing(run.longer(whole), whole // 2, last, repeat)
            return (run.longer(2 * number).makespan - run.longer(number).makespan) / number
    first, last = (0, m - 1) if m < 16 else (m // 4, 3 * m // 4)
    round_robin = math.lcm(*(len(ring) for ring in run.stages.replicas))
    if last - first < round_robin:
        return run.makespan / m
    return max(_spacing(run, first, last, round_robin), float(run.busy.max()) / m)


def _spacing(run: Simulation, first: int, last: int, repeat: int) -> float:
    """Return the mean interval between repetitions of the slowest action, over whole repeats."""
    span = (last - first) // repeat * repeat
    slowest = 0.0
    for table, begin in zip(run.schedule.actions, run.starts, strict=True):
        per_batch = np.isin(table[:, 1], PER_BATCH)
        early = np.flatnonzero((table[:, 2] == first) & ~per_batch)
        late = np.flatnonzero((table[:, 2] == first + span) & ~per_batch)
        if len(early) != len(late):
            continue  # a replica that takes only one of the two microbatches
        early = early[np.lexsort((table[early, 1], table[early, 0]))]
        late = late[np.lexsort((table[late, 1], table[late, 0]))]
        slowest = max(slowest, float((begin[late] - begin[early]).max(initial=0.0)) / span)
    return slowest
