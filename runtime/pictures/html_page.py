"""A simulation as one HTML file that needs nothing else: zoom, pan, hover."""

from __future__ import annotations

import re
from pathlib import Path

from ...instances.common.escape import markup, script
from ...instances.common.quantities import show_bytes, show_count, show_percent, show_time
from ..simulate.result import Simulation
from .marks import Marks, bands, marks_of
from .style import COLOURS, line_of

#: The page without its data; what stands between @ signs is filled in.
PAGE = Path(__file__).with_name("simulation_page.html")


def html_page(simulation: Simulation, *, title: str = "") -> str:
    """Return the page of a simulation; InputError if there is too much to draw."""
    schedule = simulation.schedule
    name = title or f"{schedule.name}, {show_count(schedule.microbatches, 'microbatch')}"
    marks = marks_of(simulation, picture=True)
    return page_of(marks, name, _facts(simulation), _table(simulation))


def page_of(marks: Marks, title: str, facts: dict[str, str], table: str = "") -> str:
    """Return the page of any marks, with facts by name first, and rows of a table as HTML."""
    kinds = [what for what in COLOURS if any(bar.what == what for bar in marks.bars)]
    data = {
        "lanes": marks.lanes,
        "kinds": [COLOURS[what] for what in kinds],
        "bars": [
            [
                *(b.lane, kinds.index(b.what), b.whole, b.stage, b.microbatch, b.start, b.end),
                *(*band, b.critical, b.bytes, bool(marks.label(b) or b.microbatch < 0)),
            ]
            for b, band in zip(marks.bars, bands(marks.bars), strict=True)
        ],
        "arrows": marks.arrows,
        "span": marks.span,
        "unit": "" if marks.time_unit == "unspecified" else marks.time_unit,
        "memory": [
            {
                "name": level.name,
                "colour": line_of(i)[0],
                "dashes": {"-": [], "--": [7, 4], ":": [2, 3]}[line_of(i)[1]],
                "steps": list(zip(level.times, level.sizes, strict=True)),
            }
            for i, level in enumerate(marks.memory)
        ],
    }
    filled = {
        "TITLE": markup(title),
        "FACTS": "".join(
            f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>"
            for name, value in facts.items()
        ),
        "TABLE": table,
        "DATA": script(data),
    }
    page = PAGE.read_text(encoding="utf-8")
    return re.sub("@(TITLE|FACTS|TABLE|DATA)@", lambda found: filled[found[1]], page)


def _facts(simulation: Simulation) -> dict[str, str]:
    unit = simulation.stages.time_unit
    return {
        "makespan": show_time(simulation.makespan, unit),
        "time per microbatch, steady state": show_time(simulation.time_per_sample, unit),
        "bubble": show_percent(simulation.bubble),
        "highest memory": show_bytes(max(m.peak for m in simulation.memory)),
    }


def _table(simulation: Simulation) -> str:
    frame = simulation.to_pandas().iloc[simulation.used]
    columns = {
        "compute": "compute", "transfer": "transfer", "idle": "idle", "bubble": "bubble",
        "in_flight": "in flight", "weight_bytes": "kept always",
        "version_bytes": "further versions", "activation_bytes": "activations, peak",
        "peak_bytes": "memory, peak",
    }  # fmt: skip
    head = "".join(f"<th>{text}</th>" for text in ["device", *columns.values()])
    rows = []
    for name, row in frame.iterrows():
        cells = [f"<th>{markup(str(name))}</th>"]
        for column in columns:
            value = float(row[column])
            if column.endswith("_bytes"):
                text = show_bytes(value)
            elif column == "bubble":
                text = show_percent(value)
            else:
                text = f"{value:.6g}"
            cells.append(f"<td>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
