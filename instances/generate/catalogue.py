"""The shipped workloads, by name: generated when asked for, the same every time.

Each architecture comes in four forms: ``NAME`` (layers, inference), ``NAME-training``,
``NAME-operators`` and ``NAME-operators-training``. What `build` takes may follow a name:
``gpt2-xl-operators-training@deeper=7`` has seven times the blocks, and ``…@microbatches=8`` the
nodes of eight microbatches.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from ..common.choices import Tied
from ..common.errors import InputError, quote
from ..common.options import check_count
from ..model.cluster import Cluster
from ..model.workload import Workload
from .architectures import ARCHITECTURES, Architecture, Granularity, Via, to_workload
from .roofline import machine

DEFAULT_ACCELERATOR = "a100-80gb"

#: Most operators of a generated graph, backward ones and all microbatches counted.
MOST_OPERATORS = 2_000_000

#: Options of `build` that may follow a name, and whether they are numbers.
NAMED = {
    "deeper": True, "microbatches": True, "batch": True, "size": True, "accelerators": True,
    "accelerator": False, "tied": False, "via": False,
}  # fmt: skip

#: Examples of training graphs of about 10,000, 30,000 and 100,000 operators.
LARGE = (
    *(f"gpt2-xl-operators-training@deeper={times}" for times in (7, 22, 74)),
    *(f"mixtral-8x7b-operators-training@deeper={times}" for times in (3, 9, 29)),
    *(f"t5-large-operators-training@deeper={times}" for times in (5, 16, 53)),
    *(f"stable-diffusion-unet-operators-training@deeper={times}" for times in (10, 30, 100)),
    *(f"llama3-8b-operators-training@microbatches={count}" for count in (10, 31, 103)),
)


@dataclass(frozen=True)
class Entry:
    """A workload of the catalogue; `build()` generates it.

    Parameters
    ----------
    name
        Unique.
    title
        Architecture, kind of graph, and pass.
    build
        Generates the workload with the catalogue's defaults.
    source
        Where dimensions and the count of parameters are from.
    parameters
        How many the architecture has, as published.
    granularity, training
        Which of its four forms this is.
    best_ms, bound_ms
        Least known max-load of a contiguous split on the suggested cluster, and a proven lower
        bound, equal where the optimum is known; None where nothing is.
    """

    name: str
    title: str
    build: Callable[[], Workload]
    source: str
    parameters: int
    granularity: Granularity
    training: bool
    best_ms: float | None
    bound_ms: float | None


@dataclass(frozen=True)
class Summary:
    """What `show` says about a workload; totals over its nodes, in bytes and operations.

    `times` has the time of all nodes on one device, by kind, in `time_unit`.
    """

    name: str
    title: str
    nodes: int
    edges: int
    parameters: float
    published_parameters: int
    flops: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    memory_bytes: float
    output_bytes: float
    times: Mapping[str, float]
    time_unit: str
    cluster: Cluster
    provenance: Mapping[str, str]


def build(
    name: str,
    *,
    accelerator: str = DEFAULT_ACCELERATOR,
    batch: int | None = None,
    size: int | None = None,
    accelerators: int | None = None,
    tied: Tied | str = Tied.COPIES,
    via: Via | str = Via.PEER,
    deeper: int = 1,
    microbatches: int = 1,
) -> Workload:
    """Generate a shipped workload, possibly with other dimensions than the catalogue's.

    Parameters
    ----------
    name
        An entry of the catalogue, such as ``gpt2-xl-training``.
    accelerator
        What its times and its suggested cluster are for; see `roofline.MACHINES`.
    batch, size
        Samples per pass; tokens per sample or pixels per side.
    accelerators
        How many the suggested cluster has; default: at least 4, and enough for its memory.
    tied
        ``copies``: nodes that use one weight matrix have a copy each. ``colour``: they share a
        device.
    via
        ``peer``: the suggested cluster's accelerators send over their own fast links. ``host``:
        through host memory.
    deeper
        How many times as many blocks it has as published.
    microbatches
        How many the graph is of, each with nodes of its own.

    Raises
    ------
    InputError
        If there is no such workload or accelerator, or the network cannot have that size.

    Examples
    --------
    >>> build("resnet50").n
    71
    """
    entry = find(name)
    architecture = ARCHITECTURES[_architecture_of(name)]
    batch = architecture.batch if batch is None else batch
    size = architecture.size if size is None else size
    for option, value in (("batch", batch), ("size", size), ("accelerators", accelerators)):
        if value is not None and value < 1:
            raise InputError(f"{option}: {value}; it must be at least 1")
    for option, count in (("deeper", deeper), ("microbatches", microbatches)):
        check_count(option, count, MOST_OPERATORS // 100)
    network = architecture.network(batch, size, deeper)
    many = len(network.operators) * microbatches * (1 + entry.training)
    if many > MOST_OPERATORS:
        raise InputError(f"{name}: {many} operators; at most {MOST_OPERATORS} are generated")
    workload = to_workload(
        network,
        machine(accelerator),
        granularity=entry.granularity,
        training=entry.training,
        tied=Tied.of("tied", tied),
        via=Via.of("via", via),
        accelerators=accelerators,
        microbatches=microbatches,
    )
    return replace(
        workload,
        name=_named(name, deeper=deeper, microbatches=microbatches),
        provenance={**workload.provenance, "source": architecture.source},
    )


def generate(name: str) -> Workload:
    """Return a shipped workload by its name, after which options of `build` may stand.

    Parameters
    ----------
    name
        Such as ``gpt2-xl-training`` or ``gpt2-xl-operators-training@deeper=7,batch=8``.

    Raises
    ------
    InputError
        As `build`, and for an option that is none.

    Examples
    --------
    >>> generate("resnet50-training@microbatches=2").n
    288
    """
    plain, _, tail = name.partition("@")
    options: dict[str, Any] = {}
    for item in tail.split(",") if tail else ():
        key, _, value = item.partition("=")
        if key not in NAMED or not value:
            raise InputError(f"{name}: {quote(item)} is no option; use {', '.join(NAMED)} as KEY=…")
        if NAMED[key] and not (value.isascii() and value.isdigit() and len(value) < 10):
            raise InputError(f"{name}: {key}: {quote(value)} is not a whole number")
        options[key] = int(value) if NAMED[key] else value
    return build(plain, **options)


def _named(name: str, **options: int) -> str:
    """Return the name with the options that are not 1."""
    said = ",".join(f"{key}={value}" for key, value in options.items() if value != 1)
    return f"{name}@{said}" if said else name


def shipped() -> Mapping[str, Callable[[], Workload]]:
    """Return what builds each shipped workload, by name, in the catalogue's order."""
    return {name: entry.build for name, entry in CATALOGUE.items()}


def find(name: str) -> Entry:
    """Return the entry called `name`.

    Raises
    ------
    InputError
        If there is none.
    """
    if name not in CATALOGUE:
        raise InputError(
            f"{name}: no shipped workload has this name; there are {', '.join(ARCHITECTURES)}, "
            "each also with -training, -operators, -operators-training"
        )
    return CATALOGUE[name]


def show(name: str) -> Summary:
    """Return a summary of the shipped workload `name`.

    Raises
    ------
    InputError
        If there is none.
    """
    entry = find(name)
    workload = entry.build()
    assert workload.cluster is not None  # the generator always suggests one
    assert workload.output_bytes is not None
    total = {column: float(values.sum()) for column, values in workload.extra.items()}
    return Summary(
        name=name,
        title=entry.title,
        nodes=workload.n,
        edges=len(workload.edges),
        parameters=total["parameters"],
        published_parameters=entry.parameters,
        flops=total["flops"],
        weight_bytes=total["weight_bytes"],
        gradient_bytes=total["gradient_bytes"],
        optimizer_bytes=total["optimizer_bytes"],
        activation_bytes=total["activation_bytes"],
        memory_bytes=float(workload.memory_bytes.sum()),
        output_bytes=float(workload.output_bytes.sum()),
        times={kind: float(values.sum()) for kind, values in workload.times.items()},
        time_unit=workload.time_unit,
        cluster=workload.cluster,
        provenance=workload.provenance,
    )


def _architecture_of(name: str) -> str:
    return name.removesuffix("-training").removesuffix("-operators")


def _known() -> dict[str, tuple[float | None, float | None]]:
    """Best value and bound of each entry, as `benchmarks/shipped_optima.py` found them."""
    text = files(__package__).joinpath("shipped_optima.csv").read_text(encoding="utf-8")
    return {
        row["name"]: (
            float(row["best_ms"]) if row["best_ms"] else None,
            float(row["bound_ms"]) if row["bound_ms"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    }


def _entries(architecture: Architecture) -> list[Entry]:
    forms: list[tuple[str, Granularity, bool]] = [
        ("", "layers", False),
        ("-training", "layers", True),
        ("-operators", "operators", False),
        ("-operators-training", "operators", True),
    ]
    return [
        Entry(
            name=architecture.name + suffix,
            title=f"{architecture.title}, {granularity}, {'training' if training else 'inference'}",
            build=partial(build, architecture.name + suffix),
            source=architecture.source,
            parameters=architecture.parameters,
            granularity=granularity,
            training=training,
            best_ms=_KNOWN[architecture.name + suffix][0],
            bound_ms=_KNOWN[architecture.name + suffix][1],
        )
        for suffix, granularity, training in forms
    ]


_KNOWN = _known()

#: Every shipped workload by name.
CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for architecture in ARCHITECTURES.values()
        for entry in _entries(architecture)
    }
)
