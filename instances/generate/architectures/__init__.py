"""Model architectures as networks of operators, and their conversion to workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from .language import bert_large, gpt2_xl, llama3_8b, mixtral_8x7b, t5_large
from .network import Network
from .vision import resnet50, semantic_fpn, stable_diffusion_unet, unet, vit_l16


class Describe(Protocol):
    """Describes a network, given batch, size, and how many times its blocks it has."""

    def __call__(self, batch: int, size: int, deeper: int = 1, /) -> Network:
        """Return the network."""


@dataclass(frozen=True)
class Architecture:
    """An architecture that workloads are generated from."""

    name: str  # name, title: for the command line, and for people
    title: str
    network: Describe  # describes it
    batch: int  # samples per pass (per microbatch, in training)
    size: int  # tokens per sample, or pixels per side of an image or latent
    parameters: int  # how many it has, as published
    source: str  # where that number is from


ALL = (
    Architecture(
        name="gpt2-xl",
        title="GPT-2 XL",
        network=gpt2_xl,
        batch=4,
        size=1024,
        parameters=1_557_611_200,
        source="Radford et al. 2019; checkpoint openai-community/gpt2-xl",
    ),
    Architecture(
        name="llama3-8b",
        title="Llama 3 8B",
        network=llama3_8b,
        batch=1,
        size=2048,
        parameters=8_030_261_248,
        source="arXiv:2407.21783, Table 3; checkpoint meta-llama/Meta-Llama-3-8B",
    ),
    Architecture(
        name="mixtral-8x7b",
        title="Mixtral 8x7B",
        network=mixtral_8x7b,
        batch=1,
        size=2048,
        parameters=46_702_792_704,
        source="arXiv:2401.04088, Table 1; checkpoint mistralai/Mixtral-8x7B-v0.1",
    ),
    Architecture(
        name="bert-large",
        title="BERT-Large",
        network=bert_large,
        batch=8,
        size=512,
        parameters=336_226_108,
        source="Devlin et al. 2019; checkpoint google-bert/bert-large-uncased, both heads",
    ),
    Architecture(
        name="t5-large",
        title="T5-Large",
        network=t5_large,
        batch=8,
        size=512,
        parameters=737_668_096,
        source="Raffel et al. 2020; checkpoint google-t5/t5-large",
    ),
    Architecture(
        name="vit-l16",
        title="ViT-L/16",
        network=vit_l16,
        batch=32,
        size=224,
        parameters=304_326_632,
        source="Dosovitskiy et al. 2021; torchvision vit_l_16",
    ),
    Architecture(
        name="resnet50",
        title="ResNet-50",
        network=resnet50,
        batch=32,
        size=224,
        parameters=25_557_032,
        source="He et al. 2016; torchvision resnet50",
    ),
    Architecture(
        name="semantic-fpn",
        title="Semantic FPN, ResNet-50",
        network=semantic_fpn,
        batch=4,
        size=512,
        parameters=28_500_000,
        source="Kirillov et al. 2019; count from Wang et al. 2021 (PVT), Table 4",
    ),
    Architecture(
        name="unet",
        title="U-Net",
        network=unet,
        batch=4,
        size=572,
        parameters=31_030_000,
        source="Ronneberger et al. 2015, Figure 1",
    ),
    Architecture(
        name="stable-diffusion-unet",
        title="Stable Diffusion 1.5 U-Net",
        network=stable_diffusion_unet,
        batch=2,
        size=64,
        parameters=859_520_964,
        source="Rombach et al. 2022; configuration runwayml/stable-diffusion-v1-5",
    ),
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in ALL})
