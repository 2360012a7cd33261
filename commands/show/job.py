"""Output of training jobs: plans, layouts by common rules beside them, explanations, fronts."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ...instances.costs.layout import describe
from ...instances.costs.terms import MEMORY_TERMS, TIME_TERMS
from ...instances.formats.problem_toml import to_plain
from ...instances.job.plan import Reason
from ..common.console import OUT, new_table, show_bytes, show_percent

if TYPE_CHECKING:
    from ...api.explain_job import JobDifference, JobExplanation
    from ...api.job import JobCandidate, JobResult, UsualChoice, WhatIf
    from ...api.job_front import JobFront
    from ...instances.job.plan import JobPlan

#: Phrase of each reason of a certificate, to follow a number of outer points.
REASONS = {
    Reason.CAPACITY: "too large for the memory",
    Reason.WORK: "with too much work",
    Reason.RELAXATION: "refuted by their relaxation",
    Reason.PROGRAM: "by their program",
    Reason.EXHAUSTED: "judged whole",
    Reason.OPEN: "open",
}


def result_dict(found: JobResult) -> dict[str, Any]:
    """Return the object for `solve --json`."""
    answer: dict[str, Any] = {
        "status": str(found.status),
        "search_seconds": found.seconds,
        "reason": found.reason,
        "least_memory_bytes": found.least_memory,
    }
    if found.plan is None:
        return answer
    return {
        **answer,
        "iteration_seconds": found.plan.seconds,
        "bound": found.plan.bound,
        "gap": found.plan.gap,
        "layout": to_plain(found.plan.layout),
        "points": found.plan.certificate.points,
        "estimate": found.estimate.as_dict(),
        "candidates": [_candidate(one) for one in found.candidates],
        "close": [_candidate(one) for one in found.close],
        "usual": [_usual(one) for one in found.usual],
    }


def _candidate(one: JobCandidate) -> dict[str, Any]:
    return {
        "layout": to_plain(one.layout),
        "seconds": one.seconds,
        "worst_seconds": one.worst,
        "free_bytes": one.free,
    }


def _usual(one: UsualChoice) -> dict[str, Any]:
    return {
        "name": one.name,
        "layout": None if one.layout is None else to_plain(one.layout),
        "seconds": one.seconds,
        "reason": one.reason,
        "outside": list(one.outside),
    }


def print_result(found: JobResult) -> None:
    """Print the plan in one line, its bound, time and memory, and other good layouts."""
    from ..estimate import print_estimate

    if found.plan is None:
        OUT.print_line(found.reason)
        return
    plan = found.plan
    OUT.print_line(f"plan: {describe(plan.layout)}")
    points = plan.certificate.points
    ruled = ", ".join(f"{points[key]:,} {label}" for key, label in REASONS.items() if key in points)
    OUT.print_line(
        f"bound: no layout of the declared space takes less than {plan.bound:.4g} s "
        f"(gap {show_percent(plan.gap)}); of {sum(points.values()):,}: {ruled}"
    )
    print_estimate(found.estimate, plan.job.memory_bytes)
    table = _layouts("layouts that differ", "layout", ("s", "behind", "worst s", "free"))
    for one in found.candidates:
        table.add_row(
            describe(one.layout),
            f"{one.seconds:.4g}",
            show_percent(one.seconds / plan.seconds - 1, signed=True),
            f"{one.worst:.4g}",
            show_bytes(one.free),
        )
    OUT.print(table)
    if found.usual:
        OUT.print(_usual_table(found.usual, plan.seconds))
    if len(found.close) > 1:
        OUT.print_line(
            f"{len(found.close)} layouts are within the costs' known error; run these first:"
        )
        for one in found.close[:3]:
            OUT.print_line(f"  {describe(one.layout)}")


def _layouts(title: str, first: str, titles: Iterable[str]) -> Table:
    """Return an empty table whose first column holds layouts, broken over lines as needed."""
    table = new_table(title, first, titles)
    table.columns[0].no_wrap = False
    return table


def _usual_table(usual: Iterable[UsualChoice], seconds: float) -> Table:
    """Return the table of layouts by common rules, against the seconds of a plan."""
    table = _layouts("what is usually done", "choice", ("s", "slower", "most by"))
    table.columns[-1].no_wrap = False
    for one in usual:
        if one.layout is None:
            table.add_row(f"{one.name}: {one.reason}", "", "", "")
            continue
        outside = f" (outside of the space: {', '.join(one.outside)})" if one.outside else ""
        table.add_row(
            f"{one.name}: {describe(one.layout)}{outside}",
            f"{one.seconds:.4g}",
            show_percent(one.seconds / seconds - 1, signed=True),
            "" if one.most is None else TIME_TERMS[one.most[0]],
        )
    return table


def explanation_dict(why: JobExplanation, changes: Iterable[WhatIf]) -> dict[str, Any]:
    """Return the object for `explain --json`."""
    return {
        "model": why.plan.model.name,
        "layout": to_plain(why.plan.layout),
        "iteration_seconds": why.plan.seconds,
        "terms": dict(why.terms),
        "memory": dict(why.memory),
        "decisions": [to_plain(one) for one in why.decisions],
        "usual": [_usual(one) for one in why.usual],
        "points": dict(why.points),
        "changes": [to_plain(one) for one in changes],
    }


def print_explanation(why: JobExplanation, changes: Iterable[WhatIf]) -> None:
    """Print the alternatives to each decision, layouts by common rules, and helpful changes."""
    plan = why.plan
    OUT.print_line(f"plan: {describe(plan.layout)}, {plan.seconds:.4g} s")
    table = _layouts(
        "decided otherwise", "decision and best known", ("s", "slower", "at least", "most by")
    )
    table.columns[-1].no_wrap = False
    for one in why.decisions:
        if one.layout is None:
            known = "no plan found in time" if isfinite(one.bound) else "nothing fits"
            table.add_row(f"{one.field}: {known}", "", "", "", "")
            continue
        most = next(iter(one.behind), None)
        table.add_row(
            f"{one.field}: {describe(one.layout)}",
            f"{one.seconds:.4g}",
            show_percent(one.seconds / plan.seconds - 1, signed=True),
            show_percent(max(0.0, one.bound / plan.seconds - 1)),
            "" if most is None else TIME_TERMS[most],
        )
    if why.decisions:
        OUT.print(table)
    OUT.print(_usual_table(why.usual, plan.seconds))
    OUT.print_line(f"free memory: {show_bytes(why.memory['free'])}")
    table = _layouts("what would help", "change and best plan", ("s", "saves", "at most"))
    for change in changes:
        if change.layout is None:
            table.add_row(f"{change.change}: no time was left", "", "", "")
            continue
        table.add_row(
            f"{change.change}: {describe(change.layout)}",
            f"{change.seconds:.4g}",
            show_percent(1 - change.seconds / plan.seconds, signed=True),
            show_percent(1 - change.bound / plan.seconds, signed=True),
        )
    if table.rows:
        OUT.print(table)


def difference_dict(found: JobDifference) -> dict[str, Any]:
    """Return the object for `diff --json`; times and sizes are the second's less the first's."""
    answer: dict[str, Any] = to_plain(found)
    answer["iteration_seconds"] = answer.pop("seconds")
    return answer


def print_difference(found: JobDifference, names: tuple[str, str]) -> None:
    """Print the differences of two plans: fields, seconds and bytes by term."""
    table = new_table("differences", "", names)
    for column in table.columns[1:]:
        column.no_wrap = False
    for name, pair in {**found.asked, **found.layout}.items():
        table.add_row(name, *(_shown(name, value) for value in pair))
    table.add_row("s per iteration", *(f"{seconds:.4g}" for seconds in found.seconds))
    OUT.print(table)
    if not (found.terms or found.memory):
        OUT.print_line("both take the same seconds and bytes by term")
        return
    terms = new_table("more in the second", "term", ("s or bytes",))
    rows = [(TIME_TERMS[name], s, f"{abs(s):.4g} s") for name, s in found.terms.items()]
    for name, size in found.memory.items():
        rows.append((MEMORY_TERMS.get(name, name), size, show_bytes(abs(size))))
    for name, difference, text in rows:
        terms.add_row(name, ("+" if difference > 0 else "−") + text)
    OUT.print(terms)


def _shown(name: str, value: object) -> str:
    """Return a field of a job or layout as text: choices by their names, memory with its unit."""
    plain = to_plain(value)
    if plain is None:
        return "not given"
    if isinstance(plain, (list, tuple)):
        return ", ".join(_shown(name, one) for one in plain) or "none"
    return show_bytes(plain) if name == "memory_bytes" else str(plain)


def front_dict(found: JobFront) -> dict[str, Any]:
    """Return the object for `solve --json` of a front."""
    return {
        "front": [
            vars(one) | {"layout": None if one.layout is None else to_plain(one.layout)}
            for one in found.points
        ]
    }


def print_front(found: JobFront, rate: float | None = None) -> None:
    """Print the best plans by number of devices, and the least numbers with a plan or a rate."""
    priced = any(one.price is not None for one in found.points)
    titles = ("s", "at least", "tokens/s", *(("per Mtoken",) if priced else ()), "layout")
    table = new_table("front", "GPUs", titles)
    table.columns[-1].no_wrap, table.columns[-1].justify = False, "left"
    for one in found.points:
        if one.layout is None:
            table.add_row(str(one.gpus), *("" for _ in titles[1:]), one.reason)
            continue
        row = [f"{one.seconds:.4g}", f"{one.bound:.4g}", f"{one.tokens_per_s:,.0f}"]
        row += [f"{one.price:.4g}"] if one.price is not None else []
        table.add_row(str(one.gpus), *row, describe(one.layout))
    OUT.print(table)
    if found.fewest is not None:
        OUT.print_line(f"fewest of these that a plan was found for: {found.fewest.gpus}")
    if rate is not None:
        enough = found.fewest_for(rate)
        many = "none of these" if enough is None else str(enough.gpus)
        OUT.print_line(f"fewest of these that reach {rate:,.0f} tokens/s: {many}")
    if priced and (cheapest := found.cheapest) is not None:
        OUT.print_line(f"least price: {cheapest.price:.4g} per million tokens, on {cheapest.gpus}")


def print_comparison(name: str, plan: JobPlan, usual: Iterable[UsualChoice]) -> None:
    """Print layouts by common rules beside a plan, and its lead over the best of them."""
    usual = tuple(usual)
    table = _usual_table(usual, plan.seconds)
    table.title = name
    OUT.print(table)
    ahead = ""
    known = [one for one in usual if one.layout is not None]
    if known:
        best = min(known, key=lambda one: one.seconds)
        gain = 1 - plan.seconds / best.seconds
        word = "faster" if gain >= 0 else "slower"
        ahead = f", {show_percent(abs(gain))} {word} than {best.name}, the best usual choice"
    OUT.print_line(
        f"{name}: {describe(plan.layout)}: {plan.seconds:.4g} s{ahead}; "
        f"bound {plan.bound:.4g} s, gap {show_percent(plan.gap)}"
    )


def comparison_rows(
    name: str, plan: JobPlan, usual: Iterable[UsualChoice]
) -> list[dict[str, object]]:
    """Return the rows of the CSV file: the plan, and each layout by a common rule."""
    found: list[tuple[str, str, float | None, str]] = [
        ("planned", describe(plan.layout), plan.seconds, "")
    ]
    for one in usual:
        layout = "" if one.layout is None else describe(one.layout)
        seconds = None if one.layout is None else one.seconds
        # what fits says why it is not the first that the rule would take
        reason = f"first choice: {one.reason}" if layout and one.reason else one.reason
        found.append((one.name, layout, seconds, reason))
    return [
        {"plan": name, "choice": choice, "layout": layout, "seconds": seconds,
         "bound": plan.bound, "reason": reason}
        for choice, layout, seconds, reason in found
    ]  # fmt: skip
