"""Readers of placement rules in cluster files, and of fixed nodes in plans."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..common.errors import prefix_errors
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.placement_rules import PlacementRules
from ..model.problem import Problem
from . import expert_json
from .outline import placed_numbers
from .source import read_source
from .stagecut_json import ClusterFile, read_file
from .versions import CLUSTER


def load_rules(path: str | Path) -> PlacementRules:
    """Return the rules for placements in a cluster file; none if it names none.

    Parameters
    ----------
    path
        A cluster file of ours, with an object ``placement_rules``.

    Returns
    -------
    PlacementRules
        To be given to a problem.

    Raises
    ------
    InputError
        If the file is broken.

    Examples
    --------
    >>> import json, stagecut
    >>> from pathlib import Path
    >>> file = json.loads(stagecut.instances.formats.dumps(stagecut.accelerators_and_cpus(2)))
    >>> file["placement_rules"] = {"pins": [["embed*", 0]]}
    >>> _ = Path("cluster.json").write_text(json.dumps(file))
    >>> load_rules("cluster.json").pins
    (('embed*', 0),)
    """
    source = read_source(path)
    file = read_file(source, ClusterFile, CLUSTER)
    with prefix_errors(source.file, "placement_rules"):
        return PlacementRules(**msgspec.structs.asdict(file.placement_rules))


def load_fixed(
    path: str | Path, problem: Problem, cluster: Cluster
) -> tuple[tuple[NodeId, int], ...]:
    """Return the devices of nodes in a plan or split file, as `PlacementRules.fixed`.

    Nodes may be missing: it is a part of a plan. InputError if the file is broken, or says devices
    where the problem's rules name stages.
    """
    source = read_source(path)
    if expert_json.is_split(source):
        return expert_json.placed_numbers(source, problem, cluster)
    return placed_numbers(source, problem)
