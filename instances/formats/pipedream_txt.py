"""Reader and writer of PipeDream's ``graph.txt``, and of its stage and replica configuration.

References
----------
Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019;
https://github.com/msr-fiddle/pipedream writes and reads the format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import numpy as np

from ..common.arrays import Floats
from ..common.errors import InputError, prefix_errors, quote
from ..common.units import NodeId
from ..model.cluster import ACCELERATOR
from ..model.layers import Layers
from ..model.solution import StagePlacement
from ..model.workload import Workload
from .source import Source

_NUMBERS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def is_pipedream(source: Source) -> bool:
    """Whether the content looks like a PipeDream graph."""
    return "forward_compute_time" in source.text and " -- " in source.text and source.data is None


def read_pipedream(source: Source) -> Workload:
    """Return the workload that a PipeDream graph describes, in milliseconds.

    A node's time is its forward and backward time, both also in `Workload.extra`; its output is the
    sum of its activations. Its one configuration takes its activations per microbatch in flight,
    and twice its parameters for them and their gradients. ``stage_id`` is kept in `Workload.extra`,
    NaN where missing, and so are lists of activations, item by item. The file names neither devices
    nor bandwidth nor microbatches. InputError names the line, the node, the field.
    """
    index: dict[str, int] = {}
    names: list[str] = []
    numbers: list[dict[str, list[float]]] = []
    edges: set[tuple[str, str]] = set()
    for row, line in enumerate(source.text.splitlines(), 1):
        if not line.strip():
            continue
        if line.startswith("\t"):
            ends = [part.strip() for part in line.split(" -- ")]
            if len(ends) != 2 or not all(ends):
                source.fail(f"line {row}: an edge is written as TAB, source, ' -- ', target")
            edges.add((ends[0], ends[1]))
            continue
        node, description, fields = _node_line(source, row, line)
        if node in index:
            source.fail(f"line {row}: node {node} occurs twice; ids must differ")
        index[node] = len(index)
        names.append(description)
        numbers.append(fields)
    if not index:
        source.fail("no nodes; a workload needs at least one")
    for tail, head in sorted(edges):
        for node in (tail, head):
            if node not in index:
                source.fail(
                    f"edge {tail} → {head}: unknown node {quote(node)}; "
                    "add its line or remove the edge"
                )
    column = {key: np.array([sum(node[key]) for node in numbers]) for key in _NUMBERS}
    forward, backward = column["forward_compute_time"], column["backward_compute_time"]
    activation, parameters = column["activation_size"], column["parameter_size"]
    pairs = sorted((index[u], index[v]) for u, v in edges)
    with prefix_errors(source.file, source.stem):
        return Workload(
            name=source.stem,
            ids=tuple(index),
            edges=np.array(pairs, np.int64).reshape(-1, 2),
            times={ACCELERATOR: forward + backward},
            memory_bytes=activation + 2 * parameters,
            transfer=None,
            output_bytes=activation,
            names=tuple(names),
            time_unit="ms",
            extra={
                "forward_time": forward,
                "backward_time": backward,
                "parameter_bytes": parameters,
                **_lists(numbers),
            },
            layers=Layers(
                node=np.arange(len(index)),
                degree=np.ones(len(index), np.int64),
                label=("vanilla",) * len(index),
                recomputes=np.zeros(len(index), np.bool_),
                time=forward + backward,
                weight_bytes=parameters,
                bytes_per_microbatch=activation,
                fixed_bytes=2 * parameters,
                edge_bytes=np.array([activation[u] for u, _ in pairs]),
                sync_bytes=({},) * len(index),
            ),
        )


def write_pipedream(workload: Workload, plan: StagePlacement | None = None) -> str:
    """Return a workload as PipeDream graph, with the stages of a plan if one is given.

    InputError if the workload does not say what the format needs: forward and backward time,
    parameters, output bytes.
    """
    extra = workload.extra
    for key in ("forward_time", "backward_time", "parameter_bytes"):
        if key not in extra:
            raise InputError(
                f"{workload.name}: extra has no {key!r}, which PipeDream's graph needs"
            )
    if workload.output_bytes is None:
        raise InputError(f"{workload.name}: its output bytes are not known; PipeDream needs them")
    stage = extra.get("stage_id", np.full(workload.n, math.nan)).copy()
    if plan is not None:
        for s, part in enumerate(plan.stages):
            stage[list(part.nodes)] = s
    name = _spelled(workload.ids)
    lines = []
    for v in range(workload.n):
        sizes = [extra[key][v] for key in _activation_keys(extra)]
        sizes = [size for size in sizes if not math.isnan(size)]
        if len(sizes) > 1:
            activation = "[" + "; ".join(repr(float(size)) for size in sizes) + "]"
        else:
            activation = _plain(workload.output_bytes[v])
        line = (
            f"{name[v]} -- {workload.names[v]} -- "
            f"forward_compute_time={_plain(extra['forward_time'][v])}, "
            f"backward_compute_time={_plain(extra['backward_time'][v])}, "
            f"activation_size={activation}, parameter_size={_plain(extra['parameter_bytes'][v])}"
        )
        lines.append(line if math.isnan(stage[v]) else f"{line} -- stage_id={int(stage[v])}")
    lines += [f"\t{name[u]} -- {name[v]}" for u, v in workload.edges.tolist()]
    return "\n".join(lines) + "\n"


def write_pipedream_stages(plan: StagePlacement) -> str:
    """Return the configuration of PipeDream's runtime: modules to stages, stages to ranks.

    The runtime counts the loss as a module of its own, which runs with the last stage.
    """
    ranks: dict[str, list[int]] = {}
    free = 0
    for s, stage in enumerate(plan.stages):
        if stage.degree > 1:
            raise InputError(f"stage {s}: PipeDream knows no tensor parallelism; plan without it")
        ranks[str(s)] = list(range(free, free + stage.replicas))
        free += stage.replicas
    modules = [*range(len(plan.stages)), len(plan.stages) - 1]
    return json.dumps({"module_to_stage_map": modules, "stage_to_rank_map": ranks}, indent=2) + "\n"


def _node_line(source: Source, row: int, line: str) -> tuple[str, str, dict[str, list[float]]]:
    parts = line.strip().split(" -- ")
    stage = math.nan
    if parts[-1].startswith("stage_id="):
        said = parts.pop().removeprefix("stage_id=")
        if not said.isdecimal():
            source.fail(f"line {row}: node {parts[0]}: stage_id is {quote(said)}; give a number")
        stage = float(said)
    if len(parts) < 3:
        source.fail(f"line {row}: a node is written as id -- description -- numbers")
    node, description, text = parts[0].strip(), " -- ".join(parts[1:-1]), parts[-1]
    given = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", text))
    fields = {"stage_id": [stage]}
    for key in _NUMBERS:
        if key not in given:
            source.fail(f"line {row}: node {node}: {key} is missing; add it")
        fields[key] = []
        for item in given[key].strip("[]").split(";"):
            try:
                value = float(item)
            except ValueError:
                value = math.nan
            if not 0 <= value < math.inf:
                source.fail(
                    f"line {row}: node {node}: {key} is {quote(item.strip())}; "
                    "it must be a finite number of at least 0"
                )
            fields[key].append(value)
    return node, description, fields


def _lists(numbers: list[dict[str, list[float]]]) -> dict[str, Floats]:
    """Return the optional columns: stages, and activations item by item, NaN where missing."""
    columns = {"stage_id": np.array([node["stage_id"][0] for node in numbers])}
    longest = max(len(node["activation_size"]) for node in numbers)
    for k in range(longest if longest > 1 else 0):
        columns[f"activation_bytes_{k}"] = np.array(
            [node["activation_size"][k] if k < len(node["activation_size"]) else math.nan
             for node in numbers]
        )  # fmt: skip
    return {key: values for key, values in columns.items() if not np.isnan(values).all()}


def _activation_keys(extra: Mapping[str, Floats]) -> list[str]:
    keys = [key for key in extra if re.fullmatch(r"activation_bytes_\d+", key)]
    return sorted(keys, key=lambda key: int(key.rpartition("_")[2]))


def _spelled(ids: tuple[NodeId, ...]) -> list[str]:
    return [node if isinstance(node, str) else f"node{node}" for node in ids]


def _plain(value: float) -> str:
    """Return a number with three decimals, as PipeDream writes it, or as many as it needs."""
    short = f"{value:.3f}"
    return short if float(short) == value else repr(float(value))
