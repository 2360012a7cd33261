"""Units of time, limits of numbers, and the type of node ids."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NodeId = int | str

#: Seconds per unit of time; a file that names no unit cannot be priced over links in bytes/s.
TIME_UNITS: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})
UNSPECIFIED = "unspecified"

#: Largest time, size or rate that files and callers may give: products of three, and sums over all
#: that a computer can hold, are still finite. The smallest rate and factor is 1 / LARGEST.
LARGEST = 1e100
SMALLEST = 1 / LARGEST

#: Largest number of microbatches, degrees, calls and the like: products with them are whole.
MOST_COUNT = 10**9

#: Generator, in a workload's provenance, of those made from PyTorch models.
FROM_PYTORCH = "stagecut.instances.pytorch"
#: Way of tracing, in a workload's provenance, whose graph holds for the traced numbers alone.
ON_NUMBERS = "operators on these numbers"
#: Advice on how to cut a model whose outermost code depends on the numbers in its tensors.
TO_RUN = (
    "move the code at fault into a module of its own, which then runs as it is; in a class that is "
    "not yours, plan a module around its inner model and leave the rest, such as the loss, to "
    "another module or to the training loop"
)
#: Module name of the outermost module's own operators in workloads made from models.
ROOT_MODULE = "model"
