"""Calibrations: what kernels and links reach, a table per kind of device and software family.

The tables are in ``calibrations.json``, each with the runs it was fitted on;
``benchmarks/fit_calibration.py`` makes them. Where none was fitted, the nearest stands in: the same
device with other software, else like software on another device, and its name says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ..common.choices import OrText
from .collectives import LinkEfficiency
from .kernels import Efficiency
from .layout import Software

_KERNELS, _LINKS = Efficiency(), LinkEfficiency()


@dataclass(frozen=True)
class Calibration:
    """What one software family reaches on one kind of device."""

    name: str = "default"  # device family and software family, such as ``a100/megatron``
    kernels: Efficiency = _KERNELS  # of kernels
    links: LinkEfficiency = _LINKS  # of collectives
    host: float = 1e-5  # seconds in which the host issues one kernel
    # seconds that a sharded optimizer adds to each layer's backward pass in a pipeline: DeepSpeed
    # handles each gradient on the host as it arrives, in every microbatch
    hooks: float = 0.0
    # seconds of an iteration outside layers and optimizer: loss, clipping, logging
    step: float = 0.0
    # how nearly a pass takes the longer of device's and host's time: the exponent q of
    # `layers.add_up`
    sharpness: float = 4.0
    # bytes that pointwise operations move without a compiler, over those of fused ones
    passes: float = 1.0
    optimizer: float = 0.7  # part of the memory bandwidth that the optimizer's step reaches
    hidden: float = 0.9  # part of overlapped communication that computation really hides
    # seconds that computation takes longer for each second of replicas' collectives beside it:
    # their kernels take units and memory bandwidth from it; over the rows of dense models with
    # sharded weights that tables are fitted on, squares are least at 0.25
    slowed: float = 0.25
    # the same of tensor-parallel collectives beside the products that they feed, piece by piece
    tensor_hidden: float = 0.6
    # seconds of each rank's broadcast, in software whose ranks send each other the weights that
    # they have updated one after the other (InternEvo); 0: by an all-gather
    broadcast: float = 0.0
    fitted: str = ""  # which runs the table was fitted on, in words
    rows: tuple[str, ...] = ()  # the same by source and number


#: Families of devices whose tables stand in for each other, the nearest first.
_NEAREST = ("h100", "a100", "b200", "v100")
#: Software whose tables stand in for each other: both are PyTorch's own modules.
_ALIKE = {
    Software.TORCHTITAN: (Software.FSDP,),
    Software.FSDP: (Software.TORCHTITAN,),
    Software.MEGATRON_DEEPSPEED: (Software.MEGATRON,),
}


@cache
def calibrations() -> dict[str, Calibration]:
    """Return the fitted tables by name."""
    text = files(__package__).joinpath("calibrations.json").read_text(encoding="utf-8")
    return {name: _read(name, values) for name, values in json.loads(text).items()}


def _read(name: str, values: dict[str, Any]) -> Calibration:
    fields = dict(values)
    fields["kernels"] = Efficiency(**fields["kernels"])
    fields["links"] = LinkEfficiency(**fields["links"])
    fields["rows"] = tuple(fields["rows"])
    return Calibration(name, **fields)


@cache
def calibration(family: str, software: OrText[Software]) -> Calibration:
    """Return the table of a device family and a software family, or the nearest one."""
    known = calibrations()
    software = Software.of("software", software)
    near = (software, *_ALIKE.get(software, ()), Software.MEGATRON)
    names = [f"{family}/{one.value}" for one in (*near, *Software)]
    names += [f"{other}/{one.value}" for other in _NEAREST for one in near]
    found = next((known[name] for name in names if name in known), Calibration())
    wanted = names[0]
    return found if found.name == wanted else replace(found, name=f"{wanted} by {found.name}")
