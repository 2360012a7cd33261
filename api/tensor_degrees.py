"""Layer configurations per tensor degree, from shardings of each layer.

Every layer of a profiled model is cut out, and its operators are sharded over t devices at least
cost, with whole tensors at its ends; identical layers are sharded once. `PipelineJob` then chooses
among:

    label            time of a microbatch            of the memory of one device
    tensor           of the fastest sharding         what that holds
    tensor-lean      of the fastest that holds at    what that holds
                     most LEAN / t of one device's
    … recompute      the forward pass again          as without tensor degree, of that sharding

A layer's program is scaled to the profile's time for one device, measured or estimated; bytes are
the profile's, times the part that a device has under the sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..instances import (
    DeviceMesh,
    InfeasibleError,
    InputError,
    Layers,
    Link,
    Sharding,
    TensorSharding,
    Workload,
    program_of,
    program_workload,
)
from ..instances.common.units import TIME_UNITS, check_counts
from ..instances.generate.roofline import CPU_CORE, machine
from ..instances.model.tensor_program import TensorProgram
from ..instances.model.training_layers import training_layers
from ..instances.pytorch.profile import Profile
from ..instances.pytorch.tensors import layer_program
from ..runtime import evaluate
from ..runtime.execution.split import PieceModule, split
from ..runtime.verify.sharding import ShardingReport
from ..solvers import Limits
from .solve import solve


class _LayerRow(NamedTuple):
    """Row of `Layers`: a layer in one configuration."""

    node: int
    degree: int
    label: str
    sharding: str
    recomputes: bool
    time: float
    weight_bytes: float
    bytes_per_microbatch: float
    fixed_bytes: float


#: Part of what one device holds, times the degree, that a lean sharding may hold.
LEAN = 1.25

#: Limits of the search for one layer and degree.
LIMITS = Limits(seconds=30.0)


@dataclass(frozen=True)
class _Split:
    """Layer on several devices: its time, and its shares of one device's bytes.

    `sharding` is as in `Layers`.
    """

    label: str
    sharding: str
    time: float
    forward: float
    parameters: float
    activations: float


def layers_by_degree(
    done: Profile,
    degrees: Sequence[int],
    *,
    estimate: str | None = None,
    link: Link | None = None,
) -> Workload:
    """Return the layers of a profiled model with configurations for several tensor degrees.

    Parameters
    ----------
    done
        From `profile`, for training, its nodes layers.
    degrees
        Devices that a layer may be spread over. Those of 1 are as from `training_layers`.
    estimate
        The accelerator of an estimated profile, whose roofline gives the saving of splitting an
        operator; default: the roofline of a CPU core.
    link
        Link between the devices of a layer; default: that of the workload's cluster.

    Returns
    -------
    Workload
        For `PipelineJob`.

    Raises
    ------
    InputError
        If a degree is no whole number of at least 1, no link is known, or a layer cannot be traced
        by itself.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024))
    >>> done = stagecut.profile(
    ...     model, (torch.zeros(4096, 1024),), training=True, estimate="h100", depth=1
    ... )
    >>> layers = stagecut.api.layers_by_degree(done, (1, 2), estimate="h100").layers
    >>> sorted(set(layers.degree.tolist()))
    [1, 2]
    """
    check_counts("degrees", tuple(degrees))
    whole = training_layers(done.workload)
    assert whole.layers is not None
    rows = [t for t in sorted(set(degrees)) if t > 1]
    if not rows:
        return whole
    link = link or _link(whole)
    one = whole.layers.time[::2]
    target = CPU_CORE if estimate is None else machine(estimate)
    known: dict[object, list[list[_Split]]] = {}
    found: list[list[list[_Split]]] = []
    for v, piece in enumerate(_pieces(done, whole)):
        made = [k for k, name in enumerate(piece.outputs) if name not in piece.inputs]
        program = layer_program(
            piece.module, [piece.values[name] for name in piece.inputs], made, target
        ).program
        program = _scaled(program, float(one[v]))
        key = _structure(program)
        if key not in known:
            known[key] = [_splits(program, t, link, whole.time_unit) for t in rows]
        found.append(known[key])
    return replace(whole, layers=_with(whole.layers, rows, found, one=1 in degrees))


def _pieces(done: Profile, whole: Workload) -> list[PieceModule]:
    """Return a piece for each layer, in the order of the layers."""
    number = {node: v for v, node in enumerate(whole.ids)}
    pieces = split(done, [number.get(node, 0) for node in done.workload.ids])
    by_layer = {number[done.workload.ids[piece.nodes[0]]]: piece for piece in pieces}
    if len(pieces) != whole.n or len(by_layer) != whole.n:
        raise InputError(
            f"{whole.name}: its layers do not run one after the other; profile with another --depth"
        )
    return [by_layer[v] for v in range(whole.n)]


def _link(workload: Workload) -> Link:
    kinds = () if workload.cluster is None else workload.cluster.kinds
    for kind in kinds:
        if kind.link is not None and np.isfinite(kind.link.bytes_per_s):
            return kind.link
    raise InputError(f"{workload.name}: no link between its devices is known; give one")


def _scaled(program: TensorProgram, time: float) -> TensorProgram:
    """Return the program with times that add up to one on one device."""
    total = sum(operator.time for operator in program.operators)
    if total == 0:
        return program
    factor = time / total
    return TensorProgram(
        program.tensors,
        tuple(
            replace(o, fixed=o.fixed * factor, compute=o.compute * factor, memory=o.memory * factor)
            for o in program.operators
        ),
    )


def _structure(program: TensorProgram) -> object:
    """Return the structure of a program without names, to recognise equal layers."""
    return (
        tuple((t.shape, t.dtype) for t in program.tensors),
        tuple(replace(o, name="") for o in program.operators),
    )


def _splits(program: TensorProgram, degree: int, link: Link, unit: str) -> list[_Split]:
    """Return the fastest sharding, and the fastest lean one if that holds more."""
    workload = program_workload(program, "layer", time_unit=unit)
    whole = _solved(workload, Sharding(DeviceMesh((1,), (link,))), "replicate")
    assert whole is not None
    single, _ = whole
    problem = Sharding(DeviceMesh((degree,), (link,)))
    fast = _solved(workload, problem, "auto")
    if fast is None:
        return []
    found = [_split("tensor", workload, single, *fast)]
    room = LEAN * single.memory_bytes / degree
    if fast[0].memory_bytes > room:
        lean = _solved(workload, replace(problem, memory_bytes=room), "auto")
        if lean is not None:
            found.append(_split("tensor-lean", workload, single, *lean))
    return found


def _solved(
    workload: Workload, problem: Sharding, method: str
) -> tuple[ShardingReport, TensorSharding] | None:
    try:
        plan = solve(workload, problem=problem, method=method, limits=LIMITS).plan
    except InfeasibleError:
        return None
    if plan is None:
        return None
    report = evaluate(workload, plan.cluster, problem, plan.solution)
    assert isinstance(report, ShardingReport)
    assert isinstance(plan.solution, TensorSharding)
    return report, plan.solution


def _split(
    label: str,
    workload: Workload,
    single: ShardingReport,
    report: ShardingReport,
    solution: TensorSharding,
) -> _Split:
    program = program_of(workload)
    late = [operator.backward for operator in program.operators]
    forward = sum(t for t, after in zip(report.times, late, strict=True) if not after)
    for one in report.converted:
        if not all(late[v] for v in one.readers):
            forward += sum(step.seconds for step in one.steps) / TIME_UNITS[workload.time_unit]
    rows = zip(program.operators, solution.signature[:, 0].tolist(), strict=True)
    return _Split(
        label,
        " ".join(operator.signatures[k].text for operator, k in rows),
        report.objective,
        forward,
        _part(report.parameter_bytes, single.parameter_bytes),
        _part(report.activation_bytes, single.activation_bytes),
    )


def _part(some: float, whole: float) -> float:
    return some / whole if whole > 0 else 1.0


def _with(
    before: Layers,
    degrees: Sequence[int],
    found: Sequence[Sequence[Sequence[_Split]]],
    *,
    one: bool,
) -> Layers:
    """Return the layers with the configurations found, layer by layer; those of degree 1 first."""
    rows: list[_LayerRow] = []
    for v, by_degree in enumerate(found):
        plain, again = (_layer_row(before, 2 * v + k) for k in range(2))
        rows += [plain, again] if one else []
        for t, splits in zip(degrees, by_degree, strict=True):
            for s in splits:
                fixed = plain.fixed_bytes * s.parameters
                live = plain.bytes_per_microbatch * s.activations
                split = plain._replace(
                    degree=t,
                    label=s.label,
                    sharding=s.sharding,
                    time=s.time,
                    weight_bytes=plain.weight_bytes * s.parameters,
                    bytes_per_microbatch=live,
                    fixed_bytes=fixed,
                )
                rows += [
                    split,
                    split._replace(
                        label=f"{s.label}-recompute",
                        recomputes=True,
                        time=s.time + s.forward,
                        bytes_per_microbatch=again.bytes_per_microbatch,
                        fixed_bytes=fixed + live,
                    ),
                ]
    columns: dict[str, Any] = dict(zip(_LayerRow._fields, zip(*rows, strict=True), strict=True))
    columns |= {key: np.array(columns[key]) for key in columns.keys() - {"label", "sharding"}}
    return replace(before, **columns, sync_bytes=({},) * len(rows))


def _layer_row(layers: Layers, c: int) -> _LayerRow:
    return _LayerRow._make(getattr(layers, name)[c] for name in _LayerRow._fields)
