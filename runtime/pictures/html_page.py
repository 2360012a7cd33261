"""A simulation as one HTML file that needs nothing else: zoom, pan, hover."""

from __future__ import annotations

import re
from pathlib import Path

from ...instances.common.escape import markup, script
from ..simulate.result import Simulation
from .gantt import DEVICE_COLOURS
from .timeline import COLOURS, bands, drawn, few_boxes, lanes, memory_steps

#: The page without its data; what stands between @ signs is filled in.
PAGE = Path(__file__).with_name("simulation_page.html")


def html_page(simulation: Simulation, *, title: str = "") -> str:
    """Return the page.

    Raises
    ------
    InputError
        If there is too much to draw.
    """
    found = few_boxes(simulation)
    kinds = [what for what in COLOURS if any(box.what == what for box in found)]
    unit = simulation.stages.time_unit
    data = {
        "lanes": lanes(simulation, picture=True),
        "kinds": [[COLOURS[what][0], COLOURS[what][1]] for what in kinds],
        "boxes": [
            [b.lane, kinds.index(b.what), b.whole, b.stage, b.microbatch, b.start, b.end, *band]
            for b, band in zip(found, bands(found), strict=True)
        ],
        "makespan": simulation.makespan,
        "unit": "" if unit == "unspecified" else unit,
        "memory": [
            {
                "name": simulation.stages.devices[d],
                "colour": DEVICE_COLOURS[i % len(DEVICE_COLOURS)],
                "steps": list(zip(*memory_steps(simulation, d), strict=True)),
            }
            for i, d in enumerate(drawn(simulation))
        ],
        "path": [[step.where, step.what, step.start, step.end] for step in _short(simulation)],
    }
    name = title or f"{simulation.schedule.name}, {simulation.schedule.microbatches} microbatches"
    filled = {
        "TITLE": markup(name),
        "FACTS": _facts(simulation),
        "TABLE": _table(simulation),
        "DATA": script(data),
    }
    page = PAGE.read_text(encoding="utf-8")
    return re.sub("@(TITLE|FACTS|TABLE|DATA)@", lambda found: filled[found[1]], page)


def write_html(simulation: Simulation, path: Path, *, title: str = "") -> None:
    """Write the page to a file.

    Parameters
    ----------
    simulation
        What the page shows: timeline, memory, table of devices.
    path
        The file; it is replaced if there is one.
    title
        Default: schedule, makespan and bubble.

    Examples
    --------
    >>> import stagecut
    >>> from pathlib import Path
    >>> run = stagecut.simulate_stages(stagecut.chain([1.0, 1.0], [2.0, 2.0]), "gpipe", 4)
    >>> stagecut.write_html(run, Path("run.html"))
    """
    path.write_text(html_page(simulation, title=title), encoding="utf-8")


def _short(simulation: Simulation) -> list:  # type: ignore[type-arg]
    return simulation.critical_path()[-2000:]


def _facts(simulation: Simulation) -> str:
    unit = simulation.stages.time_unit
    suffix = "" if unit == "unspecified" else f" {unit}"
    peak = max(simulation.memory, key=lambda m: m.peak).peak
    facts = {
        "makespan": f"{simulation.makespan:.6g}{suffix}",
        "time per sample, steady state": f"{simulation.time_per_sample:.6g}{suffix}",
        "bubble": f"{100 * simulation.bubble:.1f} %",
        "highest memory": _bytes(peak),
    }
    return "".join(
        f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>"
        for name, value in facts.items()
    )


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
                text = _bytes(value)
            elif column == "bubble":
                text = f"{100 * value:.1f} %"
            else:
                text = f"{value:.6g}"
            cells.append(f"<td>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
