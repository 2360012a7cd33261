"""A simulation as one HTML file that needs nothing else: zoom, pan, hover."""

from __future__ import annotations

import html
import json
from pathlib import Path

from .gantt import DEVICE_COLOURS
from .simulator_result import Simulation
from .timeline import COLOURS, few_boxes, lanes, memory_steps


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
        "lanes": lanes(simulation),
        "kinds": [[COLOURS[what][0], COLOURS[what][1]] for what in kinds],
        "boxes": [
            [b.lane, kinds.index(b.what), b.whole, b.stage, b.microbatch, b.start, b.end]
            for b in found
        ],
        "makespan": simulation.makespan,
        "unit": "" if unit == "unspecified" else unit,
        "memory": [
            {
                "name": simulation.stages.devices[d],
                "colour": DEVICE_COLOURS[i % len(DEVICE_COLOURS)],
                "steps": list(zip(*memory_steps(simulation, d), strict=True)),
            }
            for i, d in enumerate(simulation.used)
        ],
        "path": [[step.where, step.what, step.start, step.end] for step in _short(simulation)],
    }
    name = title or f"{simulation.schedule.name}, {simulation.schedule.microbatches} microbatches"
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        _PAGE.replace("@TITLE@", html.escape(name))
        .replace("@FACTS@", _facts(simulation))
        .replace("@TABLE@", _table(simulation))
        .replace("@DATA@", embedded)
    )


def write_html(simulation: Simulation, path: Path, *, title: str = "") -> None:
    """Write the page to a file."""
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
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in facts.items()
    )


def _table(simulation: Simulation) -> str:
    frame = simulation.to_pandas().iloc[simulation.used]
    columns = {
        "compute": "compute", "transfer": "transfer", "idle": "idle", "bubble": "bubble",
        "in_flight": "in flight", "weight_bytes": "weights", "version_bytes": "further versions",
        "activation_bytes": "activations, peak", "peak_bytes": "memory, peak",
    }  # fmt: skip
    head = "".join(f"<th>{text}</th>" for text in ["device", *columns.values()])
    rows = []
    for name, row in frame.iterrows():
        cells = [f"<th>{html.escape(str(name))}</th>"]
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


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>@TITLE@</title>
<style>
:root { color-scheme: light; --line: #d4d7dc; --soft: #5d6673; }
body { font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; color: #1d2430; margin: 24px; }
h1 { font-size: 20px; margin: 0 0 12px; }
h2 { font-size: 15px; margin: 26px 0 6px; }
dl { display: flex; flex-wrap: wrap; gap: 10px 36px; margin: 0 0 14px; }
dt { color: var(--soft); font-size: 12px; } dd { margin: 0; font-size: 18px; }
canvas { display: block; width: 100%; border: 1px solid var(--line); border-radius: 4px; }
#chart { cursor: grab; } #chart.moving { cursor: grabbing; }
#legend, #names { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; }
#legend i, #names i { display: inline-block; width: 12px; height: 12px; border-radius: 2px;
  margin-right: 6px; vertical-align: -1px; }
.hint { color: var(--soft); font-size: 12px; }
table { border-collapse: collapse; } th, td { padding: 3px 14px 3px 0; text-align: right;
  border-bottom: 1px solid var(--line); font-weight: normal; white-space: nowrap; }
thead th { color: var(--soft); font-size: 12px; } th:first-child { text-align: left; }
#tip { position: fixed; pointer-events: none; background: #1d2430; color: #fff; padding: 5px 9px;
  border-radius: 4px; font-size: 12px; display: none; white-space: pre; }
button { font: inherit; font-size: 12px; padding: 2px 10px; }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<dl>@FACTS@</dl>
<canvas id="chart"></canvas>
<div id="legend"></div>
<div class="hint">Wheel: zoom. Drag: move. Double click: all. Hover: what it is.
<label><input type="checkbox" id="critical"> show the critical path</label></div>
<h2>Memory over time</h2>
<canvas id="memory"></canvas>
<div id="names"></div>
<h2>Devices</h2>
<table>@TABLE@</table>
<div id="tip"></div>
<script>
"use strict";
const data = @DATA@;
const chart = document.getElementById("chart"), memory = document.getElementById("memory");
const tip = document.getElementById("tip"), critical = document.getElementById("critical");
const row = 30, axis = 26, names = measure(), right = 12;
let from = 0, to = data.makespan || 1;
const onPath = new Set(data.path.map(s => s[0] + "|" + s[1]));

function measure() {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "13px system-ui, DejaVu Sans, sans-serif";
  return 20 + Math.max(60, ...data.lanes.map(name => pen.measureText(name).width));
}
function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (size >= 1024 && i < 4) { size /= 1024; i++; }
  return (i ? size.toFixed(2) : size.toFixed(0)) + " " + units[i];
}
function number(x) { return String(Number(x.toPrecision(6))); }
function named(time) { return number(time) + (data.unit && " " + data.unit); }
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, height);
  return [pen, width];
}
function place(time, width) {
  return names + (time - from) / (to - from) * (width - names - right);
}
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw), list = [];
  for (let t = Math.ceil(low / step) * step; t <= high * (1 + 1e-12); t += step) list.push(t);
  return list;
}
function timeAxis(pen, width, top, bottom) {
  pen.font = "12px system-ui, DejaVu Sans, sans-serif";
  pen.textAlign = "center"; pen.textBaseline = "top";
  for (const t of ticks(from, to, 10)) {
    const x = place(t, width);
    pen.strokeStyle = "#eceef1"; pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom);
    pen.stroke();
    pen.fillStyle = "#5d6673"; pen.fillText(named(t), x, bottom + 6);
  }
}
function drawChart() {
  const height = data.lanes.length * row + axis + 8;
  const [pen, width] = prepare(chart, height);
  timeAxis(pen, width, 4, height - axis);
  pen.save();
  pen.beginPath(); pen.rect(names, 0, width - names - right, height); pen.clip();
  pen.textAlign = "center"; pen.textBaseline = "middle"; pen.font = "11px system-ui, DejaVu Sans";
  for (const [lane, kind, whole, stage, m, start, end] of data.boxes) {
    if (end < from || start > to) continue;
    const x = place(start, width), w = Math.max(0.6, place(end, width) - x), y = 4 + lane * row;
    const faded = critical.checked && !(onPath.has(data.lanes[lane] + "|" + whole) ||
      onPath.has(data.lanes[lane] + "|" + whole + ", microbatch " + m));
    pen.globalAlpha = faded ? 0.22 : 1;
    pen.fillStyle = data.kinds[kind][0];
    pen.fillRect(x, y + 2, Math.max(0.6, w - 0.7), row - 4);
    if (w > 6.6 * whole.length + 2) {
      pen.fillStyle = "#1d2430"; pen.fillText(whole, x + w / 2, y + row / 2);
    }
  }
  pen.restore();
  pen.fillStyle = "#1d2430"; pen.textAlign = "right"; pen.textBaseline = "middle";
  pen.font = "13px system-ui, DejaVu Sans, sans-serif";
  data.lanes.forEach((name, i) => pen.fillText(name, names - 8, 4 + i * row + row / 2));
}
function drawMemory() {
  const height = 210, [pen, width] = prepare(memory, height);
  const most = 1.05 * Math.max(1, ...data.memory.flatMap(m => m.steps.map(s => s[1])));
  const y = size => height - axis - size / most * (height - axis - 8);
  timeAxis(pen, width, 8, height - axis);
  pen.textAlign = "right"; pen.textBaseline = "middle";
  const scale = Math.pow(1024, Math.min(4, Math.floor(Math.log(most) / Math.log(1024))));
  for (const size of ticks(0, most / scale, 4)) {
    pen.fillStyle = "#5d6673"; pen.fillText(bytes(size * scale), names - 8, y(size * scale));
  }
  pen.save();
  pen.beginPath(); pen.rect(names, 0, width - names - right, height); pen.clip();
  pen.lineWidth = 1.6;
  for (const device of data.memory) {
    pen.strokeStyle = device.colour; pen.beginPath();
    let before = null;
    for (const [time, size] of device.steps) {
      if (before === null) pen.moveTo(place(time, width), y(size));
      else { pen.lineTo(place(time, width), y(before)); pen.lineTo(place(time, width), y(size)); }
      before = size;
    }
    pen.lineTo(place(data.makespan, width), y(before));
    pen.stroke();
  }
  pen.restore();
}
function draw() { drawChart(); drawMemory(); }
function key(target, entries) {
  for (const [colour, text] of entries) {
    const item = document.createElement("span"), swatch = document.createElement("i");
    swatch.style.background = colour;
    item.append(swatch, text);
    document.getElementById(target).append(item);
  }
}
chart.addEventListener("wheel", event => {
  event.preventDefault();
  const width = chart.clientWidth, share = (event.offsetX - names) / (width - names - right);
  const at = from + share * (to - from), factor = Math.exp(event.deltaY * 0.0015);
  from = Math.max(0, at - (at - from) * factor);
  to = Math.min(data.makespan, at + (to - at) * factor);
  draw();
}, { passive: false });
let grabbed = null;
chart.addEventListener("mousedown", event => {
  grabbed = [event.clientX, from, to]; chart.classList.add("moving");
});
window.addEventListener("mouseup", () => { grabbed = null; chart.classList.remove("moving"); });
window.addEventListener("mousemove", event => {
  if (!grabbed) return;
  const [x, a, b] = grabbed;
  let by = (x - event.clientX) / (chart.clientWidth - names - right) * (b - a);
  by = Math.max(-a, Math.min(data.makespan - b, by));
  from = a + by; to = b + by; draw();
});
chart.addEventListener("dblclick", () => { from = 0; to = data.makespan; draw(); });
chart.addEventListener("mousemove", event => {
  const width = chart.clientWidth, lane = Math.floor((event.offsetY - 4) / row);
  const time = from + (event.offsetX - names) / (width - names - right) * (to - from);
  const hit = data.boxes.find(b => b[0] === lane && b[5] <= time && time <= b[6]);
  tip.style.display = hit ? "block" : "none";
  if (!hit) return;
  const [, kind, whole, stage, m, start, end] = hit;
  tip.textContent = `${whole}: ${data.kinds[kind][1]}\\nstage ${stage}, microbatch ${m}\\n` +
    `${number(start)} to ${number(end)}, ${named(end - start)}`;
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - 220) + "px";
  tip.style.top = event.clientY + 14 + "px";
});
chart.addEventListener("mouseleave", () => { tip.style.display = "none"; });
critical.addEventListener("change", draw);
window.addEventListener("resize", draw);
key("legend", data.kinds);
key("names", data.memory.map(m => [m.colour, m.name]));
draw();
</script>
</body>
</html>
"""
