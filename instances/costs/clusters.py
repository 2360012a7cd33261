"""The table of accelerators, and training clusters described by one line or by a file.

The table is ``accelerators.csv``, each number with its source. Names may be spelled in any way: a
name means the first entry that agrees with all it says about memory, form and generation, so that
``NVIDIA A100-SXM4-40GB``, ``A100 40GB`` and ``a100-40gb`` are one device.

A cluster in one line names kinds of nodes, joined by ``+``, then options of its network::

    h100:8x16                              8 to a node, 16 nodes, the usual network
    h100:128                               the same: nodes of the usual size
    a100-80gb:8x4,network=100Gb/s          per device, one direction
    h100:8x512,oversubscription=7,leaf=3072
    h100:8x8+a100:8x16,network=25GB/s,latency=8us
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import asdict

from ..common.errors import InputError, near_names, prefix_errors, quote
from ..common.units import MOST_COUNT, parse_rate, parse_seconds
from ..formats.source import Record, read_source
from .hardware import (
    Accelerator,
    ClusterNetwork,
    Count,
    Nodes,
    NumberFormat,
    Positive,
    Ratio,
    TrainingCluster,
)

#: Most devices of a cluster.
MOST_DEVICES = 10_000_000

#: Columns of the table with a peak of matrix products, and the precisions that reach this peak.
_PEAKS = {
    "tf32": (NumberFormat.TF32,),
    "fp16": (NumberFormat.FP16,),
    "bf16": (NumberFormat.BF16,),
    "fp8": (NumberFormat.FP8, NumberFormat.FP8_BLOCK),
    "mxfp8": (NumberFormat.MXFP8,),
    "nvfp4": (NumberFormat.NVFP4,),
}

#: Names of makers and product lines, which distinguish no two devices of the table.
_NOISE = re.compile(
    r"\b(nvidia|amd|google|cloud|instinct|geforce|tesla|tensor|core|gpus?|hbm2|hbm2e|hbm3|hbm3e|"
    r"graphics|accelerator|generation)\b"
)


@dataclass(frozen=True)
class _Entry:
    """A line of the table: a device, the words of its names, and the nodes that it comes in."""

    accelerator: Accelerator
    words: frozenset[str]
    per_node: int
    network: float | None


@cache
def _table() -> tuple[_Entry, ...]:
    text = (files(__package__) / "accelerators.csv").read_text(encoding="utf-8")
    return tuple(_entry(row) for row in csv.DictReader(text.splitlines()))


def _entry(row: Mapping[str, str]) -> _Entry:
    vector = 1e12 * float(row["vector_tflops"])
    peak = {NumberFormat.FP32: vector}
    for column, precisions in _PEAKS.items():
        if row[column]:
            peak |= dict.fromkeys(precisions, 1e12 * float(row[column]))
    sources = ("compute", "memory", "link", "network")
    return _Entry(
        Accelerator(
            name=row["name"],
            family=row["family"],
            peak=peak,
            vector=vector,
            memory_bytes=2**30 * float(row["memory_gib"]),
            bandwidth=1e9 * float(row["bandwidth_gb_s"]),
            units=int(row["units"]),
            peer_bandwidth=1e9 * float(row["peer_gb_s"]),
            domain=int(row["domain"]),
            host_bandwidth=1e9 * float(row["host_gb_s"]),
            source="; ".join(
                f"{what}: {row[f'{what}_source']}" for what in sources if row[f"{what}_source"]
            ),
        ),
        frozenset(row["tokens"].split()),
        int(row["per_node"]),
        1e9 * float(row["network_gb_s"]) if row["network_gb_s"] else None,
    )


def accelerators() -> tuple[Accelerator, ...]:
    """Return the accelerators of the table.

    Examples
    --------
    >>> [device.name for device in accelerators() if device.domain == 72]
    ['gb200', 'gb300']
    """
    return tuple(entry.accelerator for entry in _table())


def accelerator(name: str) -> Accelerator:
    """Return an accelerator of the table by its name, in any spelling.

    Such as ``h100``, ``A100-80GB``, ``NVIDIA GeForce RTX 4090`` or ``TPU v5e``; InputError if the
    table has none that fits.

    Examples
    --------
    >>> accelerator("NVIDIA A100-SXM4-40GB").name, accelerator("h100").name
    ('a100-40gb', 'h100-sxm')
    """
    return _find(name).accelerator


def usual_node(name: str) -> int:
    """Return the number of devices in the usual node of an accelerator; errors as `accelerator`.

    Examples
    --------
    >>> usual_node("h100"), usual_node("gb200")
    (8, 72)
    """
    return _find(name).per_node


def _find(name: str) -> _Entry:
    """Return the first line of the table whose device `name` can mean."""
    words = _words(name)
    for entry in _table():
        if words == _words(entry.accelerator.name):
            return entry
    for entry in _table():
        if words and words <= entry.words and _model_words(entry) & words:
            return entry
    known = [entry.accelerator.name for entry in _table()]
    begun = [one.partition("-")[0] for one in known]
    others = (
        f"known are {', '.join(known)}; for another give the nearest of them in a cluster file, "
        "with its own numbers"
    )
    hint = near_names(name.lower(), [*known, *begun], others)
    if "cpu" in words:  # near tpu
        hint = "jobs are planned for accelerators, such as h100:8, or those of a cluster file"
    raise InputError(f"accelerator: {quote(name)} is not known; {hint}")


def _words(name: str) -> frozenset[str]:
    """Return the words of a device's name in lower case, a memory size such as 80gb as one word."""
    text = re.sub(r"\b(\d+)\s*(gb|gib|g)(?![a-z0-9])", r" \1gb ", name.lower().replace("_", " "))
    text = re.sub(r"\((?!\s*\d+gb)[^)]*\)|\b\d+\s*x\s*(?=[a-z])", " ", text)
    if re.search(r"hbm2e.*500w|500w.*hbm2e", text):
        return frozenset(re.findall(r"[a-z0-9]+", text)) - {"nvidia"}
    text = _NOISE.sub(" ", text)
    return frozenset(re.findall(r"[a-z0-9]+", text))


def _model_words(entry: _Entry) -> frozenset[str]:
    """Return the words of an entry that name the device's model, not its memory or form."""
    form = r"\d+gb|hbm\w+|500w|sxm[245]?|pcie|nvl|nvl72|oam|hgx|rtx|tpu|ada"
    return frozenset(word for word in entry.words if not re.fullmatch(form, word))


def training_cluster(spec: str | Path) -> TrainingCluster:
    """Return the cluster described by one line, such as ``h100:8x16``, or by a JSON file.

    Parameters
    ----------
    spec
        Kinds of nodes as ``NAME:PER_NODExNODES`` or ``NAME:DEVICES``, joined by ``+``; after commas
        ``network=`` (bandwidth per device, one direction, such as ``400Gb/s`` or ``50GB/s``),
        ``latency=`` (``5us``), ``oversubscription=``, ``leaf=`` (devices below one switch) and
        ``peer=`` (bandwidth of peer links). Or the path of a file; see `load_training_cluster`.

    Returns
    -------
    TrainingCluster
        Properties that are not given are those of the usual nodes of its devices.

    Raises
    ------
    InputError
        If a device is unknown, a number is not one, or several nodes have no known network.

    Examples
    --------
    >>> cluster = training_cluster("h100:8x16")
    >>> cluster.devices, cluster.network.bandwidth
    (128, 50000000000.0)
    """
    text = str(spec)
    if isinstance(spec, Path) or text.endswith(".json"):
        return load_training_cluster(Path(text))
    kinds, *options = (part.strip() for part in text.split(","))
    nodes = [_nodes_of(text, kind.strip()) for kind in kinds.split("+")]
    given: dict[str, float] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in _OPTIONS:
            raise InputError(
                f"cluster {quote(text)}: {quote(option)} is none of "
                f"{', '.join(f'{known}=…' for known in _OPTIONS)}"
            )
        if key in given:
            raise InputError(f"cluster {quote(text)}: {key} is given twice; leave one out")
        given[key] = _OPTIONS[key](value, f"cluster {quote(text)}: {key}")
    return _cluster(f"cluster {quote(text)}", nodes, given)


def _nodes_of(text: str, kind: str) -> tuple[_Entry, int, int]:
    """Return entry, devices per node and number of nodes of a kind such as h100:8x16."""
    name, colon, size = kind.rpartition(":")
    match = re.fullmatch(r"(\d{1,8})(?:[x×](\d{1,8}))?", size.strip())
    counted = re.match(r"\d+\s*[x×]", name)  # 8xh100:1, or 8xh100 with a number to be planned
    if not colon or counted or not match or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise InputError(f"cluster {quote(text)}: write NAME:PER_NODExNODES, such as h100:8x16")
    entry = _find(name)
    first = int(match[1])
    if match[2]:
        return entry, first, int(match[2])
    if first <= entry.per_node:
        return entry, first, 1
    if first % entry.per_node:
        each = math.gcd(first, entry.per_node)
        raise InputError(
            f"cluster {quote(text)}: {first} devices in nodes of {entry.per_node}; write "
            f"{name}:PER_NODExNODES, such as {name}:{each}x{first // each}"
        )
    return entry, entry.per_node, first // entry.per_node


def _cluster(
    where: str, kinds: list[tuple[_Entry, int, int]], given: Mapping[str, float]
) -> TrainingCluster:
    """Return the cluster of these nodes; by default with the slowest of their usual networks."""
    nodes = []
    for entry, per_node, count in kinds:
        device = entry.accelerator
        if "peer" in given:
            device = replace(device, peer_bandwidth=given["peer"])
        nodes.append(Nodes(device, per_node, count))
    bandwidth = given.get("network")
    if bandwidth is None:
        usual = [entry.network for entry, _, _ in kinds if entry.network is not None]
        within = sum(n.count for n in nodes) == 1
        if len(usual) < len(kinds) and not within:
            raise InputError(
                f"{where}: {kinds[0][0].accelerator.name} comes with no usual network; "
                "add ,network=100Gb/s or what yours has, per device"
            )
        bandwidth = min(usual, default=kinds[0][0].accelerator.host_bandwidth)
    cluster = TrainingCluster(
        tuple(nodes),
        ClusterNetwork(
            bandwidth,
            given.get("latency", ClusterNetwork.latency),
            given.get("oversubscription", 1.0),
            int(given.get("leaf", 0)),
        ),
    )
    if cluster.devices > MOST_DEVICES:
        raise InputError(f"{where}: {cluster.devices} devices; at most {MOST_DEVICES} are planned")
    return cluster


def _seconds(value: str, where: str) -> float:
    if not (found := parse_seconds(value, where)):
        raise InputError(f"{where}: {quote(value)}; it must be above 0")
    return found


def _count(value: str, where: str) -> float:
    if not re.fullmatch(r"\d{1,9}", value) or not 1 <= int(value) <= MOST_COUNT:
        raise InputError(f"{where}: {quote(value)}; it must be a whole number of at least 1")
    return int(value)


def _factor(value: str, where: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 1 <= found <= MOST_COUNT:
        raise InputError(f"{where}: {quote(value)}; it must be a number of at least 1")
    return found


#: Options of a cluster's line, and the functions that read their values.
_OPTIONS: dict[str, Callable[[str, str], float]] = {
    "network": parse_rate, "latency": _seconds, "oversubscription": _factor,
    "leaf": _count, "peer": parse_rate,
}  # fmt: skip


class NodesRecord(Record):
    """Nodes of a cluster file; a number that is given replaces that of the accelerator's entry."""

    accelerator: str
    per_node: Count | None = None
    count: Count = 1
    peak: dict[NumberFormat, Positive] = msgspec.field(default_factory=dict)
    vector: Positive | None = None
    memory_bytes: Positive | None = None
    bandwidth: Positive | None = None
    units: Count | None = None
    peer_bandwidth: Positive | None = None
    domain: Count | None = None
    host_bandwidth: Positive | None = None


class NetworkRecord(Record):
    """Network of a cluster file; an omitted field has its usual value."""

    bandwidth: Positive | None = None
    latency: Positive | None = None
    oversubscription: Ratio | None = None
    leaf: Count | None = None


class TrainingClusterFile(Record):
    """A cluster file."""

    nodes: Annotated[list[NodesRecord], msgspec.Meta(min_length=1)]
    network: NetworkRecord = msgspec.field(default_factory=NetworkRecord)


def load_training_cluster(path: Path) -> TrainingCluster:
    """Return the cluster that a JSON file describes.

    The file holds an object with ``nodes``, an array of objects with ``accelerator`` (a name of the
    table), ``per_node`` and ``count``; of these, ``peak`` (operations per second by precision),
    ``vector``, ``memory_bytes``, ``bandwidth``, ``units``, ``peer_bandwidth``, ``domain`` and
    ``host_bandwidth`` replace the table's values. ``network`` is an object with ``bandwidth``
    (bytes per second per device), ``latency``, ``oversubscription`` and ``leaf``. InputError if the
    file cannot be read, or a field is missing, unknown or wrong.
    """
    source = read_source(path)
    source.table("a cluster file or a line like h100:8x16")
    if source.format_name:
        source.fail("it is no cluster of training jobs; name one, or a line like h100:8x16")
    file = source.convert(TrainingClusterFile)
    kinds = []
    for nodes in file.nodes:
        with prefix_errors(str(path), ""):
            entry = _find(nodes.accelerator)
        own = {key: value for key, value in asdict(nodes).items() if value is not None}
        del own["accelerator"]
        count, per_node = own.pop("count"), own.pop("per_node", entry.per_node)
        own = {**own, "peak": {**entry.accelerator.peak, **nodes.peak}}
        kinds.append(
            (replace(entry, accelerator=replace(entry.accelerator, **own)), per_node, count)
        )
    given = {key: value for key, value in asdict(file.network).items() if value is not None}
    if "bandwidth" in given:  # a line's option for the same is called `network`
        given["network"] = given.pop("bandwidth")
    return _cluster(str(path), kinds, given)
