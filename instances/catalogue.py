"""The shipped workloads, by name: generated when asked for, the same every time.

Each architecture comes in four forms: ``NAME`` (layers, inference), ``NAME-training``,
``NAME-operators`` and ``NAME-operators-training``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import get_args

from . import architectures
from .architectures import Granularity, Network, Tied, Via, to_workload
from .cluster import Cluster
from .errors import InputError
from .roofline import machine
from .workload import Workload

DEFAULT_ACCELERATOR = "a100-80gb"


@dataclass(frozen=True)
class Architecture:
    """An architecture that workloads are generated from.

    Parameters
    ----------
    name, title
        For the command line, and for people.
    network
        Describes it, given batch and size.
    batch
        Samples per pass (per microbatch, in training).
    size
        Tokens per sample, or pixels per side of an image or latent.
    parameters
        How many it has, as published.
    source
        Where that number is from.
    """

    name: str
    title: str
    network: Callable[[int, int], Network]
    batch: int
    size: int
    parameters: int
    source: str


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
    """

    name: str
    title: str
    build: Callable[[], Workload]
    source: str
    parameters: int
    granularity: Granularity
    training: bool


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


_ALL = (
    Architecture(
        name="gpt2-xl",
        title="GPT-2 XL",
        network=architectures.gpt2_xl,
        batch=4,
        size=1024,
        parameters=1_557_611_200,
        source="Radford et al. 2019; checkpoint openai-community/gpt2-xl",
    ),
    Architecture(
        name="llama3-8b",
        title="Llama 3 8B",
        network=architectures.llama3_8b,
        batch=1,
        size=2048,
        parameters=8_030_261_248,
        source="arXiv:2407.21783, Table 3; checkpoint meta-llama/Meta-Llama-3-8B",
    ),
    Architecture(
        name="mixtral-8x7b",
        title="Mixtral 8x7B",
        network=architectures.mixtral_8x7b,
        batch=1,
        size=2048,
        parameters=46_702_792_704,
        source="arXiv:2401.04088, Table 1; checkpoint mistralai/Mixtral-8x7B-v0.1",
    ),
    Architecture(
        name="bert-large",
        title="BERT-Large",
        network=architectures.bert_large,
        batch=8,
        size=512,
        parameters=336_226_108,
        source="Devlin et al. 2019; checkpoint google-bert/bert-large-uncased, both heads",
    ),
    Architecture(
        name="t5-large",
        title="T5-Large",
        network=architectures.t5_large,
        batch=8,
        size=512,
        parameters=737_668_096,
        source="Raffel et al. 2020; checkpoint google-t5/t5-large",
    ),
    Architecture(
        name="vit-l16",
        title="ViT-L/16",
        network=architectures.vit_l16,
        batch=32,
        size=224,
        parameters=304_326_632,
        source="Dosovitskiy et al. 2021; torchvision vit_l_16",
    ),
    Architecture(
        name="resnet50",
        title="ResNet-50",
        network=architectures.resnet50,
        batch=32,
        size=224,
        parameters=25_557_032,
        source="He et al. 2016; torchvision resnet50",
    ),
    Architecture(
        name="semantic-fpn",
        title="Semantic FPN, ResNet-50",
        network=architectures.semantic_fpn,
        batch=4,
        size=512,
        parameters=28_500_000,
        source="Kirillov et al. 2019; count from Wang et al. 2021 (PVT), Table 4",
    ),
    Architecture(
        name="unet",
        title="U-Net",
        network=architectures.unet,
        batch=4,
        size=572,
        parameters=31_030_000,
        source="Ronneberger et al. 2015, Figure 1",
    ),
    Architecture(
        name="stable-diffusion-unet",
        title="Stable Diffusion 1.5 U-Net",
        network=architectures.stable_diffusion_unet,
        batch=2,
        size=64,
        parameters=859_520_964,
        source="Rombach et al. 2022; configuration runwayml/stable-diffusion-v1-5",
    ),
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _ALL})


def build(
    name: str,
    *,
    accelerator: str = DEFAULT_ACCELERATOR,
    batch: int | None = None,
    size: int | None = None,
    accelerators: int | None = None,
    tied: Tied = "colour",
    via: Via = "peer",
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
        ``colour``: nodes that use one weight matrix share a device. ``copies``: each has its own.
    via
        ``peer``: the suggested cluster's accelerators send over their own fast links. ``host``:
        through host memory.

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
    for option, word, known in (
        ("tied", tied, get_args(Tied)),
        ("via", via, get_args(Via)),
    ):
        if word not in known:
            raise InputError(f"{option}: {word!r} is not one of {', '.join(known)}")
    return to_workload(
        architecture.network(batch, size),
        name,
        machine(accelerator),
        granularity=entry.granularity,
        training=entry.training,
        tied=tied,
        via=via,
        accelerators=accelerators,
        provenance={"source": architecture.source},
    )


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
        )
        for suffix, granularity, training in forms
    ]


#: Every shipped workload by name.
CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {entry.name: entry for architecture in _ALL for entry in _entries(architecture)}
)
