"""Plans of training jobs: a layout with its seconds, a certified bound, and the plan's file.

A certificate has a hash of the costs and a table of outer points (layouts without their stages): a
row for each combination of degrees says how many were ruled out, for which reason, and the least
bound among them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..common.errors import InputError, quote
from ..common.units import show_gap
from ..costs.calibration import Calibration, tables_by_kind
from ..costs.description import ModelDescription
from ..costs.hardware import TrainingCluster
from ..costs.layout import Layout, describe
from ..costs.models import shipped_model, shipped_models
from ..formats.problem_toml import make_record, to_plain
from ..formats.source import JOB_PLAN, read_source
from ..formats.writing import write_whole
from ..model.summary import Summarised
from .problem import TrainingJob

#: Version of the fields of a job plan's file.
VERSION = 1


class Reason(StrEnum):
    """Reason why no plan at an outer point improves on the best plan; `OPEN`: none is known."""

    CAPACITY = "capacity"  # no plan fits, even with all layers recomputed
    WORK = "work"  # the bound from memory and work reaches the best plan
    RELAXATION = "relaxation"  # the bound of the program's linear relaxation reaches it
    PROGRAM = "program"  # the bound of the integer program reaches it
    EXHAUSTED = "exhausted"  # all plans were judged
    OPEN = "open"  # not ruled out


@dataclass(frozen=True)
class CertificateRow:
    """Outer points with the same degrees: their number by reason, and their least bound."""

    tensor: int  # tensor, context, pipeline, data, expert, expert_tensor: degrees
    context: int
    pipeline: int
    data: int
    expert: int
    expert_tensor: int
    points: Mapping[Reason, int]  # number of points by reason
    bound: float | None  # seconds that no plan at these points undercuts; None: no plan fits

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor, context, pipeline, data, expert and expert-tensor degree."""
        return (
            self.tensor, self.context, self.pipeline, self.data, self.expert, self.expert_tensor
        )  # fmt: skip


@dataclass(frozen=True)
class JobCertificate:
    """Certificate that no plan of the declared space is faster than a bound."""

    # hash of all inputs of the bounds: model, cluster, job, and calibrations of all kinds of nodes
    costs: str
    calibration: str  # name of the table of efficiencies
    rows: tuple[CertificateRow, ...]  # all outer points of the space, grouped by degrees

    @property
    def points(self) -> dict[Reason, int]:
        """Number of outer points by reason."""
        found: dict[Reason, int] = {}
        for row in self.rows:
            for reason, count in row.points.items():
                found[reason] = found.get(reason, 0) + count
        return found

    @property
    def bound(self) -> float:
        """Seconds of an iteration; no plan of the space is faster."""
        return min((row.bound for row in self.rows if row.bound is not None), default=float("inf"))


@dataclass(frozen=True, repr=False)
class JobPlan(Summarised):
    """Layout of a model's training on a cluster, with a bound on its time and its certificate.

    Parameters
    ----------
    model, cluster, job
        Model, cluster, and the problem as the user posed it.
    layout
        Layout that the plan chooses.
    seconds
        Seconds of one iteration.
    bound
        Seconds of an iteration; no plan of the declared space is faster.
    certificate
        Proof of the bound, by outer points of the space.
    provenance
        Versions that made the plan.
    """

    model: ModelDescription
    cluster: TrainingCluster
    job: TrainingJob
    layout: Layout
    seconds: float
    bound: float
    certificate: JobCertificate
    provenance: Mapping[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Return model, devices, layout, seconds and bound for display."""
        return {
            "model": self.model.name,
            "devices": self.cluster.kinds,
            "layout": describe(self.layout),
            "seconds": self.seconds,
            "bound": self.bound,
            "gap": show_gap(self.gap),
            "tokens_per_s": self.tokens_per_s,
        }

    @property
    def gap(self) -> float:
        """Largest fraction of `seconds` that a better plan could save."""
        return max(0.0, 1 - self.bound / self.seconds)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and device."""
        tokens = self.layout.global_batch * self.layout.sequence
        return tokens / self.seconds / self.layout.devices

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        write_whole(Path(path), json.dumps(self.as_dict(), indent=1) + "\n")

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of the plan's file."""
        model: Any = self.model.name
        if model not in shipped_models() or shipped_model(model) != self.model:
            model = to_plain(self.model)
        return {
            "format": JOB_PLAN,
            "version": VERSION,
            "model": model,
            "cluster": to_plain(self.cluster),
            "job": to_plain(self.job),
            "layout": to_plain(self.layout),
            "seconds": self.seconds,
            "bound": self.bound,
            "certificate": to_plain(self.certificate),
            "provenance": dict(self.provenance),
        }


def is_job_plan(path: str | Path) -> bool:
    """Whether a file says that it is the plan of a training job."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return f'"{JOB_PLAN}"' in file.read(200)
    except (OSError, UnicodeDecodeError):
        return False


def load_job_plan(path: str | Path) -> JobPlan:
    """Read the plan of a training job from a file.

    Parameters
    ----------
    path
        File that `JobPlan.save` or ``stagecut solve`` wrote.

    Returns
    -------
    JobPlan
        The plan as it was saved; `verify` checks it.

    Raises
    ------
    InputError
        If the file has no such plan, or a field is missing or wrong: one line with file and field.

    Examples
    --------
    >>> import stagecut
    >>> job = stagecut.TrainingJob(global_batch=64, sequence=4096)
    >>> plan = stagecut.solve("llama3.2-1b", "h100:8", job).plan
    >>> plan.save("job.json")
    >>> stagecut.load_job_plan("job.json") == plan
    True
    """
    plain = read_source(path).table("the plan of a training job, as solve writes it")
    if plain.get("format") != JOB_PLAN:
        raise InputError(f"{path}: it is no plan of a training job; solve writes one")
    if plain.get("version") != VERSION:
        raise InputError(
            f"{path}: version {quote(plain.get('version'))}; this stagecut reads {VERSION}"
        )
    body = {name: value for name, value in plain.items() if name not in ("format", "version")}
    if isinstance(body.get("model"), str):
        body["model"] = to_plain(shipped_model(body["model"]))
    plan = make_record(JobPlan, body, str(path))
    for name in ("seconds", "bound"):
        if not 0 < getattr(plan, name) < float("inf"):
            raise InputError(f"{path}: {name}: {getattr(plan, name):g}; it must be above 0")
    return plan


def costs_hash(
    model: ModelDescription, cluster: TrainingCluster, job: TrainingJob, calibration: Calibration
) -> str:
    """Return a hash of all inputs that determine the seconds and bytes of a job.

    `calibration` is that of the first kind of nodes; the tables of other kinds are hashed too.
    """
    tables = tables_by_kind(calibration, cluster, job.settings.software)
    text = json.dumps([to_plain(one) for one in (model, cluster, job, *tables)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
