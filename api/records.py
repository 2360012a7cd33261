"""Records of published instances: files of the best known plan and bound.

A folder of records holds `records.csv`, a row per record, and the plan files that it names.
`check_record` trusts none of it: it reads the instance and the plans and recomputes everything.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ..instances import InputError, Plan, VerificationError, Workload
from ..instances.formats.files import load, load_plan_with_form, save
from ..instances.formats.plan_json import CHECKED
from ..instances.formats.source import read_source
from ..instances.formats.writing import write_whole
from ..instances.model.plan import gap_between
from ..runtime import verify
from ..runtime.verify.bounds.check import check_bound

#: The folder of the records that come with Stagecut.
SHIPPED = Path(__file__).parents[1] / "records"
#: Relative difference up to which objectives or bounds count as equal.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class InstanceRecord:
    """Record of one instance."""

    instance: str  # path of its file below the folder of the published instances
    asked: str  # the question, in a few words; with `instance` it names the record
    objective: float  # of the best plan known, in the instance's time unit
    bound: float  # the best bound known: no plan has a lower objective
    bound_from: str  # what proved the bound
    # whether the bound has a certificate that `check_record` checks; else it is a claim of the
    # search in `bound_from`
    checked: bool
    # plan, bound_plan: files below the folder `plans`: of the objective, and of the bound
    plan: str
    bound_plan: str
    # published, published_by: value and source of published results; empty if none is known
    published: str = ""
    published_by: str = ""
    command: str = ""  # command that made the plan
    version: str = ""  # version of Stagecut that made it

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return gap_between(self.objective, self.bound)


def read_records(folder: str | Path) -> list[InstanceRecord]:
    """Return the records of a folder.

    InputError if `records.csv` is missing or damaged; the message names the line.

    Examples
    --------
    >>> read_records("nowhere")
    Traceback (most recent call last):
    stagecut.instances.common.errors.InputError: nowhere/records.csv: no such file; check the path
    """
    source = read_source(Path(folder) / "records.csv")
    names = [field.name for field in fields(InstanceRecord)]
    rows = csv.DictReader(io.StringIO(source.text, newline=""))
    if rows.fieldnames != names:
        source.fail(f"its columns are not {', '.join(names)}")
    try:
        return [_from_row(row) for row in rows]
    except (TypeError, ValueError, KeyError, csv.Error):
        source.fail(f"line {rows.line_num} is no record")


def _from_row(row: dict[str, str]) -> InstanceRecord:
    words: dict[str, object] = dict(row)
    for name in ("objective", "bound"):
        words[name] = number = float(row[name])
        if math.isnan(number):
            raise ValueError(name)
    words["checked"] = {"yes": True, "no": False}[row["checked"]]
    return InstanceRecord(**words)  # type: ignore[arg-type]


def write_records(folder: str | Path, records: list[InstanceRecord]) -> None:
    """Write `records.csv`, in the order of instances, whole or not at all."""
    text = io.StringIO()
    rows = csv.DictWriter(
        text, [field.name for field in fields(InstanceRecord)], lineterminator="\n"
    )
    rows.writeheader()
    for record in sorted(records, key=lambda r: (r.instance, r.asked)):
        rows.writerow(asdict(record) | {"checked": "yes" if record.checked else "no"})
    write_whole(Path(folder) / "records.csv", text.getvalue())


def check_record(record: InstanceRecord, folder: str | Path, instances: str | Path) -> None:
    """Recompute everything that a record claims.

    The plan is verified from the definition, and the certificate of the bound, if there is one, is
    checked. InputError if a file is missing or damaged, or was made for another instance;
    VerificationError if a plan is not what the record says, or a certificate does not prove its
    bound.
    """
    workload, plan = _load(record.plan, record, folder, instances)
    verify(workload, plan)
    _same(plan.objective, record.objective, f"the objective of {record.plan}")
    bound_plan = plan
    if record.bound_plan != record.plan:
        _, bound_plan = _load(record.bound_plan, record, folder, instances)
        if not _same_question(plan, bound_plan):
            raise VerificationError(f"{record.bound_plan} answers another question")
    _same(bound_plan.bound, record.bound, f"the bound of {record.bound_plan}")
    if record.bound > record.objective * (1 + TOLERANCE):
        raise VerificationError(f"{record.instance}: the bound is above the objective")
    if record.checked:
        check_bound(workload, bound_plan)


def submit_record(
    plan_file: str | Path,
    folder: str | Path,
    instances: str | Path,
    *,
    instance: str = "",
    asked: str = "",
    command: str = "",
) -> tuple[InstanceRecord, str]:
    """Add a plan file to the records in `folder` if it is valid and improves them.

    Returned are the record as it is now, and what the plan improved: ``new``, ``objective``,
    ``bound``, ``objective and bound`` or ``nothing``. For an instance or a question without a
    record, `instance` is its file below the folder of the published `instances`, and `asked` a name
    for the question. InputError if the plan is for none of the records or is damaged;
    VerificationError as of `check_record`.
    """
    records = read_records(folder)
    found = _find(plan_file, records, instances, instance)
    if found is None:
        raise InputError(
            f"{plan_file}: no record is for this instance and question; give --instance and "
            "--asked to begin one"
        )
    workload, plan, path = found
    verify(workload, plan)
    proved = plan.certificate.get("origin") in CHECKED
    if proved:
        check_bound(workload, plan)
    old = next(
        (r for r in records if r.instance == path and _answers(r, plan, folder, instances)), None
    )
    if old is None:
        if not asked:
            raise InputError(
                f"{plan_file}: no record asks this of {path}; give --asked to begin one"
            )
        new = _record(path, asked, plan, proved, command)
        better = "new"
    else:
        new, better = _improved(old, plan, proved, command)
    if better != "nothing":
        plans = Path(folder) / "plans"
        plans.mkdir(exist_ok=True)
        if better == "objective" and old is not None and old.bound_plan == old.plan:
            write_whole(plans / new.bound_plan, (plans / old.plan).read_bytes())
        save(plan, plans / (new.bound_plan if better == "bound" else new.plan), workload)
        write_records(folder, [*(r for r in records if r is not old), new])
    return new, better


def _record(path: str, asked: str, plan: Plan, proved: bool, command: str) -> InstanceRecord:
    """Return the first record of a question."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{Path(path).with_suffix('')} {asked}".lower()) + ".json"
    return InstanceRecord(
        instance=path,
        asked=asked,
        objective=plan.objective,
        bound=plan.bound,
        bound_from=str(plan.certificate.get("origin", "")),
        checked=proved,
        plan=name,
        bound_plan=name,
        command=command,
        version=str(plan.provenance.get("stagecut", "")),
    )


def _improved(
    old: InstanceRecord, plan: Plan, proved: bool, command: str
) -> tuple[InstanceRecord, str]:
    """Return a record improved by the plan, and the improvements.

    A bound that is only a search's word does not take the place of one that was checked, unless
    it is the better plan's own.
    """
    new, better = old, []
    if plan.objective < old.objective * (1 - TOLERANCE):
        better.append("objective")
        version = str(plan.provenance.get("stagecut", ""))
        new = replace(new, objective=plan.objective, command=command, version=version)
    if plan.bound > old.bound * (1 + TOLERANCE) and (proved or not old.checked):
        better.append("bound")
        origin = str(plan.certificate.get("origin", ""))
        new = replace(new, bound=plan.bound, bound_from=origin, checked=proved)
    if better == ["objective", "bound"]:
        new = replace(new, bound_plan=new.plan)
    elif better == ["bound"] or (better and old.bound_plan == old.plan):  # they are of two plans
        new = replace(new, bound_plan=f"{old.plan.removesuffix('.json')}-bound.json")
    return new, " and ".join(better) or "nothing"


def _find(
    plan_file: str | Path, records: list[InstanceRecord], instances: str | Path, instance: str
) -> tuple[Workload, Plan, str] | None:
    """Return the instance that a plan was made for, the plan, and the instance's path."""
    for path in [instance] if instance else sorted({record.instance for record in records}):
        workload = load(Path(instances) / path)
        try:
            form, plan = load_plan_with_form(plan_file, workload)
            plan.check_made_for(form)
        except InputError:
            if instance:
                raise
            continue
        return form, plan, path
    return None


def _answers(record: InstanceRecord, plan: Plan, folder: str | Path, instances: str | Path) -> bool:
    """Whether a plan is for the problem of a record."""
    return _same_question(_load(record.plan, record, folder, instances)[1], plan)


def _same_question(one: Plan, other: Plan) -> bool:
    same = one.problem == other.problem and one.cluster.fingerprint == other.cluster.fingerprint
    return same and one.workload_fingerprint == other.workload_fingerprint


def _load(
    name: str, record: InstanceRecord, folder: str | Path, instances: str | Path
) -> tuple[Workload, Plan]:
    workload = load(Path(instances) / record.instance)
    return load_plan_with_form(Path(folder) / "plans" / name, workload)


def _same(value: float, claimed: float, what: str) -> None:
    if abs(value - claimed) > TOLERANCE * max(abs(value), abs(claimed)):
        raise VerificationError(f"{what} is {value!r}, not {claimed!r} as the record says")
