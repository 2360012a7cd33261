"""Model architectures as networks of operators, and their conversion to workloads.

``architectures.csv`` has the size of a pass of each (samples, and tokens or pixels per side), and
its published number of parameters, with the source of that number.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from .language import bert_large, gpt2_xl, llama3_8b, mixtral_8x7b, t5_large
from .network import Network
from .vision import resnet50, semantic_fpn, stable_diffusion_unet, unet, vit_l16


@dataclass(frozen=True)
class Architecture:
    """An architecture that workloads are generated from."""

    title: str  # name for people
    # generator of its network, from batch, size, and factor of its number of blocks
    network: Callable[[int, int, int], Network]
    batch: int  # samples per pass (per microbatch, in training)
    size: int  # tokens per sample, or pixels per side of an image or latent
    parameters: int  # published number of parameters
    source: str  # source of that number


_NETWORKS: Mapping[str, Callable[[int, int, int], Network]] = {
    "gpt2-xl": gpt2_xl,
    "llama3-8b": llama3_8b,
    "mixtral-8x7b": mixtral_8x7b,
    "bert-large": bert_large,
    "t5-large": t5_large,
    "vit-l16": vit_l16,
    "resnet50": resnet50,
    "semantic-fpn": semantic_fpn,
    "unet": unet,
    "stable-diffusion-unet": stable_diffusion_unet,
}


def _read() -> dict[str, Architecture]:
    folder = files(__name__.rpartition(".")[0])
    text = (folder / "architectures.csv").read_text(encoding="utf-8")
    return {
        row["name"]: Architecture(
            row["title"],
            _NETWORKS[row["name"]],
            int(row["batch"]),
            int(row["size"]),
            int(row["parameters"]),
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    }


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(_read())
