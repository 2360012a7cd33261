"""Calibrations: what kernels and links reach, a table per kind of device and software family."""

from __future__ import annotations

from dataclasses import dataclass, field

from .collectives import Links
from .kernels import Efficiency


@dataclass(frozen=True)
class Calibration:
    """What one software family reaches on one kind of device.

    Parameters
    ----------
    name
        Device family and software family.
    kernels
        Of kernels.
    links
        Of collectives.
    host
        Seconds in which the host issues one kernel; a pass takes no less than its kernels take to
        issue.
    hooks
        Seconds that a sharded optimizer adds to each layer's backward pass: DeepSpeed handles each
        gradient on the host as it arrives, in every microbatch.
    sharpness
        How nearly a pass takes the longer of device's and host's time: the exponent q of
        `layers.add_up`.
    passes
        Bytes that pointwise operations move over those of fully fused ones.
    optimizer
        Part of the memory bandwidth that the optimizer's step reaches.
    hidden
        Part of overlapped communication that computation really hides.
    fitted
        Which runs the table was fitted on.
    """

    name: str = "default"
    kernels: Efficiency = Efficiency()
    links: Links = Links()
    host: float = 7e-6
    hooks: float = 0.0
    sharpness: float = 3.0
    passes: float = 1.0
    optimizer: float = 0.7
    hidden: float = 0.9
    fitted: str = ""


DEFAULT = Calibration()
