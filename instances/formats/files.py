"""Reading and writing of files: the format is recognised by content, writing is atomic."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from ..common.choices import Tied
from ..common.errors import InputError, near_names, prefix_errors, quote
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.completed import complete
from ..model.placement_rules import PlacementRules
from ..model.plan import Plan, Planned, plan_of
from ..model.problem import Problem
from ..model.solution import Placement
from ..model.tied_weights import tied_as
from ..model.workload import Workload
from . import (
    outline,
    pipedream_txt,
    piper_json,
    placement_json,
    plan_json,
    stagecut_json,
)
from .outline import placed_numbers
from .source import CLUSTER, JOB_PLAN, PLAN, PROGRAM, WORKLOAD, Source, read_file, read_source
from .stagecut_json import ClusterFile, make_cluster
from .tensor_program_json import read_program, write_program
from .writing import json_text, write_whole


@dataclass(frozen=True)
class Reader:
    """Reader of one format of workloads."""

    format: str  # name of the format in messages
    # whether a file is of this format, even if it is broken, judged by its content alone
    sniff: Callable[[Source], bool]
    # returns the workload, or raises InputError through `Source.fail`
    read: Callable[[Source], Workload]


#: Tried in this order: the format with the most specific test first.
READERS: tuple[Reader, ...] = (
    Reader(
        "Stagecut workload", lambda file: file.format_name == WORKLOAD, stagecut_json.read_workload
    ),
    Reader("Stagecut program", lambda file: file.format_name == PROGRAM, read_program),
    Reader("Piper JSON", piper_json.is_piper, piper_json.read_piper),
    Reader("PipeDream graph", pipedream_txt.is_pipedream, pipedream_txt.read_pipedream),
    Reader("placement JSON", placement_json.is_placement, placement_json.read_placement),
)


def load(name_or_path: str | Path) -> Workload:
    """Return a shipped or published workload by its name, or the workload in a file.

    A file wins over a workload of the same name. The format is found by the content.

    Parameters
    ----------
    name_or_path
        Such as ``gpt2-xl`` or ``gpt2-xl-training@deeper=4``, a published file that was fetched such
        as ``piper/bert32a100.json``, or any file; `stagecut instances list` lists the shipped ones.

    Returns
    -------
    Workload
        Checked: frozen and valid from here on.

    Raises
    ------
    InputError
        If there is neither, or the file is broken: one line with file, field, id and remedy.

    Examples
    --------
    >>> load("gpt2-xl").time_unit
    'ms'
    """
    path = name_or_path
    if isinstance(path, str) and not os.path.exists(path):
        if not {"/", "."} & set(path.partition("@")[0]):
            return _shipped(path)
        path = _published(path)
    return read_workload(read_source(path))


def read_workload(source: Source) -> Workload:
    """Return the workload in a file that was read; InputError if there is none, or it is broken."""
    for reader in READERS:
        if source.format_name not in ("", WORKLOAD, PROGRAM):
            break
        if reader.sniff(source):
            return reader.read(source)
    return _fail_no_workload(source)


def load_cluster(path: str | Path) -> Cluster:
    """Return the cluster in a file.

    Parameters
    ----------
    path
        A Stagecut cluster file.

    Returns
    -------
    Cluster
        As `save` wrote it.

    Raises
    ------
    InputError
        If the file is broken.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.save(stagecut.accelerators_and_cpus(2), "cluster.json")
    >>> load_cluster("cluster.json").size
    2
    """
    source = read_source(path)
    file = read_file(source, ClusterFile, CLUSTER)
    return make_cluster(source, file.kinds, file.links)


def load_plan(path: str | Path, workload: Workload, cluster: Cluster | None = None) -> Plan:
    """Return the plan in a file, made for `workload` (and for `cluster`, if given).

    Parameters
    ----------
    path
        A Stagecut plan file.
    workload, cluster
        What it must have been made for; by default any cluster.

    Returns
    -------
    Plan
        As it was saved; `verify` checks its claims.

    Raises
    ------
    InputError
        If the file is broken, was changed, or was made for something else.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> cluster = stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> stagecut.save(plan, "plan.json", workload)
    >>> load_plan("plan.json", workload).objective == plan.objective
    True
    """
    source = read_source(path)
    if outline.made_for(source)[0] != workload.fingerprint and _is_for_a_form(path, workload):
        source.fail(
            f"the plan was made for another form of {workload.name} (tied weights, or what its "
            "problem assumes): plan again; in Python, load_plan_with_form of "
            "stagecut.instances.formats.files returns form and plan"
        )
    return plan_json.read_plan(source, workload, cluster)


def _is_for_a_form(path: str | Path, workload: Workload) -> bool:
    try:
        load_plan_with_form(path, workload)
    except InputError:
        return False
    return True


def load_plan_with_form(path: str | Path, workload: Workload) -> tuple[Workload, Plan]:
    """Return the workload in the form that a plan file is for, and the plan.

    The command line plans a workload in the form that the problem needs: with the assumptions of
    `complete`, and for an iteration with gradients of tied weights exchanged once per batch
    (`tied_as`).

    Parameters
    ----------
    path
        A Stagecut plan file.
    workload
        What it was made for, as loaded from its file.

    Returns
    -------
    tuple of Workload and Plan
        The workload for which `verify`, `simulate` and `explain` take the plan, and the plan.

    Raises
    ------
    InputError
        If the file is broken, was changed, or was made for something else.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("bert-large-training")
    >>> form = stagecut.instances.tied_as(workload, "copies", microbatches=4)
    >>> problem, cluster = stagecut.PipelineJob(4), stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(form, cluster, problem, method="megatron").plan
    >>> stagecut.save(plan, "tied.json", form)
    >>> found, again = load_plan_with_form("tied.json", workload)
    >>> again.objective == stagecut.verify(found, again).objective
    True
    """
    source = read_source(path)
    fingerprint, microbatches = outline.made_for(source)
    forms = [workload]
    if workload.ties:
        forms += [tied_as(workload, tied, microbatches) for tied in Tied]
    form = next((form for form in forms if form.fingerprint == fingerprint), None)
    if form is None:
        completed = _completed(forms, *outline.posed(source))
        form = next((form for form in completed if form.fingerprint == fingerprint), workload)
    plan = plan_json.read_plan(source, form)
    for whole in _completed([form], plan.problem, plan.cluster):  # extras are in no fingerprint
        if whole.fingerprint == fingerprint:
            form = whole
    return form, plan


def _completed(forms: list[Workload], problem: Problem, cluster: Cluster) -> list[Workload]:
    """Return workloads completed for a problem, without those that have no meaning for it."""
    found = []
    for form in forms:
        with suppress(InputError):
            found.append(complete(form, problem, cluster))
    return found


def load_split(path: str | Path, workload: Workload, cluster: Cluster | None = None) -> Placement:
    """Return the placement in a split file (``{"fpgas": [{"nodes": […]}], "cpus": […]}``).

    Parameters
    ----------
    path
        The split file.
    workload
        What it splits.
    cluster
        Whose devices the file numbers; default: the one that the workload suggests.

    Returns
    -------
    Placement
        Nodes that the file leaves out are with their colour.

    Raises
    ------
    InputError
        If the file is broken, or does not fit workload and cluster.

    Examples
    --------
    >>> import json, stagecut
    >>> from pathlib import Path
    >>> workload = stagecut.load("gpt2-xl")
    >>> half = workload.n // 2
    >>> parts = [list(workload.ids[:half]), list(workload.ids[half:])]
    >>> _ = Path("split.json").write_text(json.dumps({"fpgas": [{"nodes": p} for p in parts]}))
    >>> load_split("split.json", workload).device.tolist().count(1) == workload.n - half
    True
    """
    source = read_source(path)
    if source.flaw:
        source.fail(source.flaw)
    if not placement_json.is_split(source):
        source.fail("it has neither fpgas nor cpus; a split file lists the nodes of each of them")
    return placement_json.read_split(source, workload, cluster)


def dumps(value: Workload | Cluster | Plan | Planned, workload: Workload | None = None) -> str:
    """Return the text of the file that `save` writes; see there.

    Parameters
    ----------
    value, workload
        As in `save`.

    Returns
    -------
    str
        One JSON object.

    Raises
    ------
    InputError
        If `value` is a plan and `workload` is not given, or is another one.

    Examples
    --------
    >>> import stagecut
    >>> dumps(stagecut.accelerators_and_cpus(2)).splitlines()[1]
    '  "format": "stagecut-cluster",'
    """
    if isinstance(value, Workload):
        if value.program is not None:
            return json_text(write_program(value, value.program))
        return json_text(stagecut_json.write_workload(value))
    if isinstance(value, Cluster):
        return json_text(stagecut_json.write_cluster(value))
    plan = plan_of(value)
    if workload is None:
        raise InputError("save: a plan names nodes by the ids of its workload; give the workload")
    return json_text(plan_json.write_plan(plan, workload))


def save(
    value: Workload | Cluster | Plan | Planned, path: str | Path, workload: Workload | None = None
) -> None:
    """Write a workload, cluster or plan as Stagecut JSON, completely or not at all.

    Parameters
    ----------
    value
        What to write; of a `Result`, its plan.
    path
        The file; it is replaced if there is one.
    workload
        What a plan was made for; its file names nodes by their ids. Only needed for plans.

    Raises
    ------
    InputError
        If it cannot be written: no such folder, no permission, a full disk. Then a file that
        was there is unchanged.

    Examples
    --------
    >>> import stagecut
    >>> stagecut.save(stagecut.load("gpt2-xl"), "workload.json")
    >>> stagecut.load("workload.json").fingerprint == stagecut.load("gpt2-xl").fingerprint
    True
    """
    write_whole(path, dumps(value, workload))


def _shipped(name: str) -> Workload:
    # only here: a file needs no architectures
    from ..generate.catalogue import CATALOGUE, generate

    if name.partition("@")[0] not in CATALOGUE:
        _fail_unknown(name, list(CATALOGUE))
    return generate(name)


def _published(name: str) -> str | Path:
    """Return the path of the published file of this name, or the name if there is none."""
    from ..generate.published import published_files, published_folder

    if all(file.path != name for file in published_files()):
        return name
    path = published_folder() / name
    if not path.exists():
        raise InputError(f"{name}: not fetched yet; `stagecut instances fetch {name}` does")
    return path


def _fail_unknown(name: str, known: list[str]) -> NoReturn:
    few = ", ".join(known[:4]) + (", … (stagecut instances list)" if len(known) > 4 else "")
    hint = near_names(name, known, f"shipped are {few}")
    raise InputError(
        f"{name or quote(name)}: no such file, and no shipped workload of this name; "
        f"{hint if known else 'check the path'}"
    )


def _fail_no_workload(source: Source) -> NoReturn:
    if source.flaw:
        source.fail(source.flaw)
    named = source.format_name
    if named == PLAN:
        source.fail("it is a plan, not a workload; name the workload that it was made for")
    if named == JOB_PLAN:
        source.fail(
            "it is the plan of a training job, not a workload; verify, simulate and explain take "
            "it alone"
        )
    if named == CLUSTER:
        source.fail("it is a cluster, not a workload; name a workload file")
    if named:
        source.fail(f"unknown format {quote(named)}; known are {_formats()}")
    if placement_json.is_split(source):
        source.fail("it is a split of a workload, not a workload; load the workload first")
    if isinstance(source.data, dict) and "model_type" in source.data:
        source.fail(
            "it is a model's config.json, planned as a training job: give --global-batch and "
            "--cluster, such as h100:8x8"
        )
    source.fail(f"its content is of no known format; known are {_formats()}")


def _formats() -> str:
    return ", ".join(reader.format for reader in READERS)


def load_rules(path: str | Path) -> PlacementRules:
    """Return the placement rules in a cluster file, empty if it has none.

    InputError if the file is broken.
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
    if placement_json.is_split(source):
        return placement_json.placed_numbers(source, problem, cluster)
    return placed_numbers(source, problem)
