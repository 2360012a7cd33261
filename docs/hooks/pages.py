"""Pages that are made from the code: statements of the problems, and the public names."""

from __future__ import annotations

import ast
import csv
import re
from dataclasses import dataclass
from pathlib import Path

from blocks import HEAD, indented, is_mathematics, rules_of, sentences, typeset

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = {
    "throughput": "Throughput",
    "job": "Training jobs",
    "latency": "Latency",
    "mapping": "Mapping",
    "sharding": "Sharding",
    "schedule": "Schedules",
}


@dataclass(frozen=True)
class Page:
    """A page made from the code: its path below the site, its title, its Markdown."""

    path: str
    title: str
    text: str


def statements() -> list[Page]:
    """Return a page per problem: each module of `formulations/` that has equations."""
    pages = []
    for folder, title in PROBLEMS.items():
        parts = []
        for path in sorted((ROOT / "formulations" / folder).glob("*.py")):
            said = ast.get_docstring(ast.parse(path.read_text())) or ""
            if has_equations(said):
                parts.append((path, said))
        if parts:
            parts.sort(key=lambda part: ("symbol " not in part[1], -len(part[1])))
            text = "\n\n".join([f"# {title}: formulations", INTRODUCTION, *map(_section, parts)])
            pages.append(Page(f"formulations/{folder}.md", title, text))
    return pages


INTRODUCTION = (
    "This page is made from the docstrings of the modules named below, so it cannot part from the "
    "code. Beside an equation stands the rule that states it: rows and variables have these names "
    "in a file that `stagecut export-model` writes."
)


def has_equations(said: str) -> bool:
    """Whether a docstring states something in an indented block."""
    for inside, lines in indented(said):
        content = [line for line in lines if line.strip()]
        if inside and content and (HEAD.match(content[0].strip()) or is_mathematics(content)):
            return True
    return False


def _section(part: tuple[Path, str]) -> str:
    path, said = part
    first, _, rest = said.partition("\n")
    rest, _, references = rest.partition("References\n----------\n")
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    body = typeset(rest, rules_of(path), f"{path.stem}-").replace("][", "]&#91;")
    parts = [f"## {first.rstrip('.')}", f"`{name}.py`", body]
    if references:
        parts.append(f"*Source.* {sentences(references).strip()}")
    return "\n\n".join(parts)


def records_table() -> str:
    """Return the table of the records as Markdown."""
    rows = ["| instance | asked | objective | bound | gap | proof | published |"]
    rows.append("|---|---|---:|---:|---:|---|---:|")
    with (ROOT / "records" / "records.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            objective, bound = float(row["objective"]), float(row["bound"])
            gap = max(0.0, (objective - bound) / objective)
            shown = "0" if gap < 1e-9 else f"{gap:.2%}"
            proof = f"{row['bound_from']}{' ✓' if row['checked'] == 'yes' else ''}"
            published = f"{float(row['published']):.7g}" if row["published"] else ""
            rows.append(
                f"| {row['instance']} | {row['asked']} | {objective:.7g} | "
                f"{bound:.7g} | {shown} | {proof} | {published} |"
            )
    return "\n".join(rows)


def api() -> list[Page]:
    """Return a page per group of public names, in the order of the package's docstring."""
    source = (ROOT / "__init__.py").read_text()
    said = ast.get_docstring(ast.parse(source)) or ""
    homes = _homes(source)
    pages, left = [], dict(homes)
    for title, text in _groups(said):
        names = [name for name in re.findall(r"`(\w+)`", text) if name in homes]
        for name in names:
            left.pop(name, None)
        if names:
            body = "\n\n".join(f"::: stagecut.{homes[name]}" for name in names)
            page = f"# {title[0].upper()}{title[1:]}\n\n{body}\n"
            pages.append(Page(f"api/{title.split(',')[0].replace(' ', '_')}.md", title, page))
    for room in ROOMS:
        names = _homes_below(room)
        body = "\n\n".join(
            f"::: stagecut.{names[name]}"
            for name in sorted(names)
            if name not in homes and not name.isupper()
        )
        title = f"stagecut.{room.replace('/', '.')}"
        pages.append(Page(f"api/{room.replace('/', '_')}.md", title, f"# {title}\n\n{body}\n"))
    if left:
        raise ValueError(f"public names in no group of the package's docstring: {sorted(left)}")
    return pages


def _homes(source: str) -> dict[str, str]:
    """Return where each public name is defined, as its import for types says."""
    homes = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                if alias.asname == alias.name:
                    homes[alias.name] = f"{node.module}.{alias.name}"
    return homes


#: Packages whose names are public beside those of the package itself.
ROOMS = (
    "instances", "instances/formats", "instances/costs", "instances/pytorch", "runtime",
    "runtime/simulate", "runtime/pictures", "runtime/measure", "runtime/execution", "api",
)  # fmt: skip


def _homes_below(room: str) -> dict[str, str]:
    """Return where the public names of a package are defined: as imported, or loaded when used."""
    tree = ast.parse((ROOT / room / "__init__.py").read_text())
    package, homes = room.replace("/", "."), {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                homes[alias.name] = f"{package}.{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES":
            for module, names in ast.literal_eval(node.value).items():
                homes |= {name: f"{package}.{module}.{name}" for name in names.split()}
    return homes


def _groups(said: str) -> list[tuple[str, str]]:
    """Return title and text of the rows of the table in the package's docstring."""
    rule = re.findall(r"^(=+)\s+=+$", said, re.MULTILINE)
    width = len(rule[0])
    table = said.split("=\n", 1)[1].split("\n=", 1)[0]
    groups: list[tuple[str, str]] = []
    for line in table.splitlines():
        title, text = line[:width].strip(), line[width:].strip()
        if title:
            groups.append((title, text))
        else:
            groups[-1] = (groups[-1][0], f"{groups[-1][1]} {text}")
    return groups
