"""Named options of problems, models and results: enums whose values are the texts in files.

A field that takes an option takes its text, too: ``Throughput(split="contiguous")`` is
``Throughput(split=Split.CONTIGUOUS)``. The fields' docstrings say what the options mean.
"""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar, Union

from .errors import InputError, quote


class Choice(StrEnum):
    """Base of named options, which equal their texts in files."""

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def of(cls, option: str, value: object) -> Self:
        """Return the choice that `value` is, or is the text of.

        InputError, which names `option` and lists the choices, if it is none.

        Examples
        --------
        >>> Split.of("split", "contiguous")
        'contiguous'
        """
        if type(value) is cls:
            return value
        try:
            return cls(value)  # type: ignore[arg-type]  # what is no text is refused, too
        except ValueError:
            known = ", ".join(cls)
            raise InputError(f"{option}: {quote(value)} is not one of {known}") from None


C = TypeVar("C", bound=Choice)

if TYPE_CHECKING:
    OrText = Union[C, str]  # noqa: UP007  # what callers may pass for a choice
else:

    class OrText:
        """Annotation of a field: at run time the enum alone, by which readers convert files."""

        def __class_getitem__(cls, choice: type[Choice]) -> type[Choice]:
            return choice


def choose(record: Any, **choices: type[Choice]) -> None:
    """Replace texts in the fields of a frozen dataclass by the choices that they name.

    Called from ``__post_init__``; InputError if a field is none of its choices, or a field of type
    bool is neither true nor false.
    """
    for field, choice in choices.items():
        object.__setattr__(record, field, choice.of(field, getattr(record, field)))
    for field in _flags(record.__class__):
        value = getattr(record, field)
        if not isinstance(value, bool):
            raise InputError(f"{field}: {quote(value)}; it must be true or false")


@cache
def _flags(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields of type bool."""
    return tuple(item.name for item in fields(kind) if item.type == "bool")


class Split(Choice):
    """Contiguity required of each device's nodes; see `Throughput`."""

    CONTIGUOUS = "contiguous"
    PER_DEVICE = "per-device"
    NONCONTIGUOUS = "noncontiguous"


class CpuSplit(Choice):
    """Contiguity required of the nodes of CPU cores; see `Throughput`."""

    CONTIGUOUS = "contiguous"
    FREE = "free"


class Pipeline(Choice):
    """Order of forward and backward passes in the steady state; see `Throughput`."""

    PIPEDREAM = "pipedream"
    GPIPE = "gpipe"


class PipelineSchedule(Choice):
    """Schedule of a pipeline's devices; `STREAM` has no end; see `PipelineJob`."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    GIVEN = "given"
    STREAM = "stream"


#: The orders of M microbatches that have a name.
NAMED_SCHEDULES = tuple(
    name
    for name in PipelineSchedule
    if name not in (PipelineSchedule.GIVEN, PipelineSchedule.STREAM)
)


class Recomputation(Choice):
    """Activation recomputation in the backward pass; see `PipelineJob`."""

    FREE = "free"
    OFF = "off"
    FORCED = "forced"


class InFlight(Choice):
    """Schedule of a stream, on which the memory of its stages depends; see `PipelineJob`."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    PIPEDREAM = "pipedream"
    TWO_BW = "2bw"


class Optimizer(Choice):
    """Optimizer, whose state training keeps per weight; see `PipelineJob`."""

    AS_GIVEN = "as-given"
    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


class Precision(Choice):
    """Number formats of weights, gradients and optimizer state; see `PipelineJob`."""

    FP32 = "fp32"
    MIXED = "mixed"


class MappingMode(Choice):
    """Communication that a mapping counts: between stages, within them, or both."""

    P2P = "p2p"
    ALLR = "allr"
    BOTH = "both"


class Collective(Choice):
    """Algorithm of a mapping's all-reduces; see `DeviceMapping`."""

    RING = "ring"
    CHEAPEST = "cheapest"


class Primitive(Choice):
    """Collective along an axis of a mesh; see `PrimitiveLink`."""

    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    GATHER = "gather"
    SCATTER = "scatter"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


class Rounds(Choice):
    """Algorithm of a collective, on which its number of rounds depends; see `PrimitiveLink`."""

    RING = "ring"
    TREE = "tree"


class MappingObjective(Choice):
    """Objective of a mapping, a maximum; see `DeviceMapping`."""

    STAGE_TIME = "stage-time"
    BUSIEST_LINK = "busiest-link"


class Role(Choice):
    """Role of a node in a tensor program: operator, parameter or input; see `Operator`."""

    OPERATOR = "operator"
    PARAMETER = "parameter"
    INPUT = "input"


class ShardingObjective(Choice):
    """Objective of a sharding; see `Sharding`."""

    TIME = "time"
    DISTPAR = "distpar"


class Routing(Choice):
    """Routing rule for messages; see `Topology`."""

    HOPS = "hops"
    WIDEST = "widest"


class Tied(Choice):
    """Treatment of weights that several operators use; see `profile`."""

    COLOUR = "colour"
    COPIES = "copies"


class Status(Choice):
    """Outcome of a search; see `Result`."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_SOLUTION = "no solution"


class Limit(Choice):
    """Reason why a search ended; see `Result`."""

    NONE = "none"
    TIME = "time"
    NODES = "nodes"
    INTERRUPT = "interrupt"
