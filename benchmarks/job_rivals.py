"""Rivals that a planner of training jobs must not be behind: published layouts and usual choices.

    python benchmarks/job_rivals.py [--only NAME] [--seconds S]

`jobs` returns each job with its rivals. For every published recipe of NVIDIA's (model, devices and
precision), these are the published layout, with its measured seconds, and what the usual rules
choose there. For models from 8B to 671B on 8 to 16,384 devices, they are what the same rules
choose. All layouts of a job have one recipe, software, overlap and graphs, and one evaluator prices
them all, the planner's among them. For each job, it prints the seconds of all layouts, how far they
are behind the planner's, and the reason if a rule gives none. `--seconds` is the planner's limit
for each job. Rows of the jobs chosen by NAME replace earlier ones; other rows stay.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import results
from job_sweeps import in_short

from stagecut.api.job import JobCosts
from stagecut.formulations.job.space import job_space
from stagecut.instances.costs.calibration import calibration
from stagecut.instances.costs.clusters import training_cluster
from stagecut.instances.costs.description import ModelDescription
from stagecut.instances.costs.hardware import TrainingCluster
from stagecut.instances.costs.layers import LayerPrices
from stagecut.instances.costs.layout import OFFLOAD, Layout
from stagecut.instances.costs.memory import peak_memory
from stagecut.instances.costs.models import shipped_model
from stagecut.instances.job.launchers import runs
from stagecut.instances.job.problem import TrainingJob, on_one_device
from stagecut.instances.job.usual_layouts import UsualLayout, published_recipes, usual_layouts
from stagecut.runtime.estimate import iteration_times
from stagecut.solvers.job.search import JobSearch, search_job

#: Model, cluster, global batch and sequence of the jobs that nobody published.
OTHERS = (
    ("llama3-8b", "h100:8x1", 128, 8192),
    ("llama3-8b", "a100:8x8", 512, 8192),
    ("llama3-70b", "h100:8x8", 512, 8192),
    ("llama3-70b", "a100:8x16", 512, 4096),
    ("llama3-70b", "h100:8x128", 2048, 8192),
    ("llama3.1-405b", "h100:8x64", 512, 8192),
    ("llama3.1-405b", "h100:8x2048", 2048, 8192),
    ("mixtral-8x7b", "h100:8x8", 256, 4096),
    ("mixtral-8x22b", "h100:8x16", 256, 8192),
    ("qwen3-235b-a22b", "h100:8x32", 1024, 4096),
    ("deepseek-v3", "h100:8x256", 4096, 4096),
    ("gpt3-175b", "a100:8x128", 1536, 2048),
)
#: What the published layout is called among a job's rivals, and the planner's.
PUBLISHED, PLANNED = "as published", "planned"


@dataclass(frozen=True)
class SameJob(TrainingJob):
    """A training job with the recipe, software, overlap and graphs of a layout.

    What of it lies in host memory may lie there.

    Parameters
    ----------
    base
        That layout.
    """

    base: Layout = field(default_factory=Layout)

    @classmethod
    def of(cls, base: Layout) -> SameJob:
        """Return the job of a layout."""
        hosts: dict[str, Any] = {
            name: tuple(sorted({0.0, getattr(base, name)})) for name in OFFLOAD
        }
        return cls(global_batch=base.global_batch, sequence=base.sequence, base=base, **hosts)

    @property
    def template(self) -> Layout:
        """The layout on one device."""
        return on_one_device(replace(self.base, shard_group=0, mtp_stage=-1))


@dataclass(frozen=True)
class Job:
    """A job with its rivals.

    Parameters
    ----------
    name
        Model, devices and precision.
    model, cluster, base
        What is trained and on what; batch, recipe, software, overlap and graphs of all layouts.
    rivals
        The layout that was published, if one was, and what the rules choose.
    measured
        Seconds of the published layout.
    """

    name: str
    model: ModelDescription
    cluster: TrainingCluster
    base: Layout
    rivals: tuple[UsualLayout, ...]
    measured: float | None = None

    def prices(self) -> LayerPrices:
        """What all of them are priced by."""
        table = calibration(self.cluster.accelerator.family, self.base.software)
        return LayerPrices(self.model, self.cluster, table)


def jobs(only: str = "") -> Iterator[Job]:
    """Yield the jobs whose name has `only` in it, those with published layouts first."""
    for recipe in published_recipes():
        own = recipe.layout
        name = f"{recipe.name}, {recipe.devices}, {own.recipe.compute}"
        if only in name:
            model, cluster = recipe.model, recipe.cluster
            rules = usual_layouts(model, cluster, own)
            rivals = (UsualLayout(PUBLISHED, own, ""), *rules)
            yield Job(name, model, cluster, own, rivals, recipe.seconds)
    for named, devices, batch, sequence in OTHERS:
        base = Layout(global_batch=batch, sequence=sequence)
        name = f"{named}, {devices}, {base.recipe.compute}"
        if only in name:
            model, cluster = shipped_model(named), training_cluster(devices)
            yield Job(name, model, cluster, base, usual_layouts(model, cluster, base))


def planned(job: Job, seconds: float) -> JobSearch:
    """Return what the planner finds in so many seconds, within a thousandth."""
    asked = SameJob.of(job.base)
    costs = JobCosts(job.model, job.cluster, asked, job.prices())
    space = job_space(job.model, job.cluster, asked)
    deadline = time.monotonic() + seconds
    starts = costs.starts(job.rivals)
    return search_job(
        space, costs.prices, costs.judge, starts, gap=1e-3, deadline=deadline
    )  # fmt: skip


def outside(job: Job, layout: Layout) -> list[str]:
    """Return in what a rival lies outside of what the planner was asked."""
    asked = SameJob.of(job.base)
    own = replace(on_one_device(layout), mtp_stage=asked.template.mtp_stage)
    names = [one.name for one in fields(Layout)]
    found = [name for name in names if getattr(own, name) != getattr(asked.template, name)]
    if not asked.allows(job.model, layout):
        found.append(runs(asked.launcher, layout, job.model) or "degrees")
    return found


def rows_of(job: Job, limit: float) -> list[dict[str, object]]:
    """Return a row for the planner, and one for each rival of a job."""
    prices, began = job.prices(), time.process_time()
    found = planned(job, limit)
    spent = time.process_time() - began
    plan = UsualLayout(PLANNED, found.best, "" if found.best else "no plan")
    rows = []
    for rival in (plan, *job.rivals):
        row: dict[str, object] = {"job": job.name, "rival": rival.name, "layout": ""}
        columns = ("seconds", "behind", "measured_s", "needed_gib", "fits", "outside")
        row |= dict.fromkeys(columns, "")
        if rival.layout is not None:
            needed = peak_memory(job.model, rival.layout).needed
            seconds = iteration_times([rival.layout], prices)[0].seconds
            published = rival.name == PUBLISHED and job.measured is not None
            row |= {
                "layout": in_short(rival.layout),
                "seconds": f"{seconds:.4g}",
                "behind": f"{seconds / found.seconds - 1:.4f}",
                "measured_s": f"{job.measured:.4g}" if published else "",
                "needed_gib": f"{needed / 2**30:.1f}",
                "fits": int(needed <= job.cluster.accelerator.memory_bytes),
                "outside": "; ".join(outside(job, rival.layout)),
            }
        own = rival.name == PLANNED
        row |= {"bound": f"{found.least_bound:.4g}" if own else ""}
        row |= {"cpu_s": f"{spent:.1f}" if own else "", "reason": rival.reason}
        rows.append(row)
    return rows


def main() -> None:
    """Print plans and rivals of each job and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for job in jobs(options.only):
        print(job.name, flush=True)
        for row in rows_of(job, options.seconds):
            rows.append({name: str(value) for name, value in row.items()})
            words = (row["rival"], row["layout"], row["reason"])
            numbers = f"{row['seconds']!s:>10}{row['behind']!s:>9}{row['measured_s']!s:>8}"
            print(f"{numbers} {' | '.join(map(str, words))}")
    results.write("job_rivals", rows, "", keys=("job", "rival") if options.only else ())


if __name__ == "__main__":
    main()
