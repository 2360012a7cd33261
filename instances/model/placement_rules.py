"""Placement rules of users: pins, nodes together, nodes apart, number of stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from ..common.arrays import Ints, frozen
from ..common.errors import InputError, near_names, quote
from ..common.units import NodeId, check_count
from .cluster import Cluster
from .summary import ByFields
from .workload import Workload


@dataclass(frozen=True)
class PlacementRules(ByFields):
    """Constraints that a user adds to those of a plan's problem.

    A *pattern* is a node's id or name, or a glob over ids and names: ``*`` any text, ``?`` one
    character, ``[ab]`` one of them. What a number is depends on the problem: the number of a device
    (`Throughput`, `Latency`, `PipelineJob` with a split that is not contiguous), or of a stage in
    the order of the pipeline (`PipelineJob` with a contiguous split). Negative ones count from the
    end: −1 is the last device of the cluster, or the plan's last stage. For the latency
    all devices of a host kind are one.

    Parameters
    ----------
    pins
        Pairs of a pattern and a number: all matching nodes are on that device, or in that stage.
    together
        Patterns: all nodes that match one of them share a device, or a stage.
    apart
        Patterns: no two nodes that match different ones share a device (in training, a stage); of
        a single pattern, no two nodes that match it and have different colours.
    max_stages
        At most so many devices are used; of a chain of stages, at most so many stages.
    fixed
        Pairs of a node's id and a number: a part of a plan.

    Raises
    ------
    InputError
        If a pattern is no text or empty, or a number is no whole number.

    Examples
    --------
    >>> import stagecut
    >>> rules = PlacementRules(pins=(("embed*", 0), ("lm_head", -1)), apart=(("mlp.3", "mlp.4"),))
    >>> stagecut.Throughput(placement_rules=rules).placement_rules.pins[1]
    ('lm_head', -1)
    """

    pins: tuple[tuple[str, int], ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    max_stages: int | None = None
    fixed: tuple[tuple[NodeId, int], ...] = ()

    def __post_init__(self) -> None:
        for key in ("pins", "together", "apart", "fixed"):
            given = getattr(self, key)
            if isinstance(given, str) or any(isinstance(rule, str) for rule in given):
                raise InputError(f"{key}: {quote(given)}; it must be a tuple of tuples")
            object.__setattr__(self, key, tuple(tuple(rule) for rule in given))
        for key in ("pins", "fixed"):
            for rule in getattr(self, key):
                number = rule[-1] if len(rule) == 2 else None
                if isinstance(number, bool) or not isinstance(number, int):
                    raise InputError(f"{key}: {quote(rule)} is no pair of a node and a number")
        patterns = [pattern for pattern, _ in self.pins]
        for rule in (*self.together, *self.apart):
            if not rule:
                raise InputError("together, apart: a rule without patterns; remove it")
            patterns += rule
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern or "\0" in pattern:
                raise InputError(
                    f"pattern {quote(pattern)}: it must be a text, not empty, without null bytes"
                )
        if self.max_stages is not None:
            check_count("max_stages", self.max_stages)

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return any(getattr(self, item.name) for item in fields(self))

    def numbered(self, workload: Workload) -> Iterator[tuple[str, list[int], int]]:
        """Yield text, nodes and number of each pin, those of `fixed` included.

        Raises
        ------
        InputError
            If a pattern matches no node, or a node does not exist.
        """
        for pattern, number in self.pins:
            rule = f"pin {quote(f'{pattern}={number}')}"
            yield rule, matching(pattern, workload, rule), number
        for node, number in self.fixed:
            rule = f"fixed {quote(f'{node}={number}')}"
            if node not in workload.index:
                raise InputError(f"{rule}: {workload.name} has no node {node!r}; use its ids")
            yield rule, [workload.index[node]], number

    def joined(self, workload: Workload) -> Iterator[tuple[str, list[int]]]:
        """Yield text and nodes of each rule of `together`; errors as of `numbered`."""
        for patterns in self.together:
            rule = f"together {quote(' '.join(patterns))}"
            yield rule, sorted({v for one in patterns for v in matching(one, workload, rule)})

    def separated(self, workload: Workload) -> Iterator[tuple[str, list[list[int]]]]:
        """Yield text and groups of nodes of each rule of `apart`.

        No two groups may share a device. Of a single pattern the groups are its colours, and its
        nodes that have none.

        Raises
        ------
        InputError
            As `numbered`, and if a node matches two patterns of a rule.
        """
        for patterns in self.apart:
            rule = f"apart {quote(' '.join(patterns))}"
            groups = [matching(one, workload, rule) for one in patterns]
            seen: set[int] = set()
            for nodes in groups:
                if both := seen.intersection(nodes):
                    node = workload.ids[min(both)]
                    raise InputError(f"{rule}: node {node} matches two of its patterns")
                seen.update(nodes)
            if len(groups) == 1:
                of: dict[tuple[int, int], list[int]] = {}
                for v in groups[0]:
                    colour = int(workload.colours[v])
                    of.setdefault((colour, v if colour < 0 else -1), []).append(v)
                groups = list(of.values())
            yield rule, groups


#: Placement rules of a problem by default: none.
NO_RULES = PlacementRules()


def matching(pattern: str, workload: Workload, rule: str) -> list[int]:
    """Return the nodes with an id or name equal to, or matched by, the pattern.

    InputError, about the rule, if there is none.
    """
    found = [
        v
        for v, names in enumerate(zip(map(str, workload.ids), workload.names, strict=True))
        if any(name == pattern or fnmatchcase(name, pattern) for name in names)
    ]
    if not found:
        known = f"it has {', '.join(workload.names[:3])}, …"
        hint = near_names(pattern, (*map(str, workload.ids), *workload.names), known)
        raise InputError(
            f"{rule}: no node of {workload.name} has an id or name that matches {quote(pattern)}; "
            f"{hint}"
        )
    return found


def places(cluster: Cluster, *, pools: bool) -> Ints:
    """Return the place of each device, shape (D,): its number, or that of its pool's first device.

    With `pools`, the devices of a host kind are one pool, as for the latency.
    """
    kinds = [device.kind for device in cluster.devices]
    first = [kinds.index(k) if pools and cluster.kinds[k].host else d for d, k in enumerate(kinds)]
    return frozen(first, "int64")
