"""Names from files become no code, markup or formula wherever they are written to."""

from __future__ import annotations

import ast
import json
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from launcher_readers import read_deepspeed, read_torchtitan
from typer.testing import CliRunner

from stagecut import Cluster, DeviceKind, InputError, Throughput, Workload, save, solve
from stagecut.cli import app
from stagecut.commands.common.console import OUT
from stagecut.instances.common import escape
from stagecut.runtime import evaluate
from stagecut.runtime.export import deepspeed, torchtitan
from stagecut.runtime.export.stages import ModuleStages
from stagecut.runtime.pictures.charts import draw_loads
from stagecut.runtime.pictures.marks import html_page
from stagecut.runtime.simulate.simulator import simulate

HOSTILE = [
    'x"""\nimport os; os.abort()\n"""',
    "x'''\nimport os; os.abort()\n'''",
    'x\\"""\nimport os; os.abort()\n"""\\',
    "back\\slash\\",
    "two\nlines\r\nand\rmore",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>&amp;<b onclick=\"x()\" a='b'>",
    "=cmd|' /C calc'!A0",
    "  +1+1",
    "@SUM(A1)",
    "-2",
    "{0.__class__} {title} %s %(x)s ${HOME} `id` $(id) ; rm -rf ~",
    "line\u2028and paragraph\u2029separators\x85",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "\x7fdelete\x08\x00",
    "$x^{$ and \\$y$",
    "right\u202eleft",
    "[bold red]markup[/] [/oops]",
    "@DATA@ @TITLE@ @TABLE@",
    "# comment\n[table]\nkey = 1",
    "'",
    '"',
    "ä→b 漢字 🙂",
]
name = pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))


@name
def test_python_reads_a_text_and_runs_nothing(text: str) -> None:
    source = f'"""About {escape.docstring(text)}."""\n# {escape.one_line(text)}\nx = {text!r}\n'
    doc, assigned = ast.parse(source).body
    assert isinstance(doc, ast.Expr)
    assert isinstance(doc.value, ast.Constant)
    assert isinstance(assigned, ast.Assign)
    assert ast.literal_eval(assigned.value) == text


@name
def test_html_shows_a_text_and_runs_nothing(text: str) -> None:
    class Reader(HTMLParser):
        """Collects elements and texts."""

        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []
            self.texts: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
            self.tags.append(tag)

        def handle_data(self, data: str) -> None:
            self.texts.append(data)

    reader = Reader()
    reader.feed(f"<b title='{escape.markup(text)}'>{escape.markup(text)}</b>")
    assert reader.tags == ["b"]
    assert "".join(reader.texts) == escape.plain(text)
    data = escape.script({"name": text})
    assert json.loads(data) == {"name": text}
    assert not set("<>&\u2028\u2029\n") & set(data)


@name
def test_shell_and_terminals(text: str) -> None:
    if "\0" not in text:
        assert shlex.split(
            f"run {escape.shell(text)} # {escape.one_line(text)}", comments=True
        ) == [
            "run",
            text,
        ]
    assert all(c.isprintable() or c == "\n" for c in escape.plain(text))
    with OUT.capture() as said:
        OUT.print(text, soft_wrap=True)
    assert all(c.isprintable() or c == "\n" for c in said.get())
    assert said.get().strip("\n") == escape.plain(text).strip("\n")


@name
def test_tables_hold_no_formula(text: str) -> None:
    frame = pd.DataFrame({"name": [text], "value": [-1.5]}).map(escape.csv)
    back = pd.read_csv(StringIO(frame.to_csv(index=False)), keep_default_na=False, dtype=str)
    assert back["name"][0].lstrip()[:1] not in ("=", "+", "-", "@")
    assert back["value"][0] == "-1.5"
    assert (
        back["name"][0].removeprefix("'") == text.removeprefix("'").replace("\r\n", "\n")
        or "\r" in text
    )


@name
def test_launchers_read_the_names_back(text: str) -> None:
    stages = ModuleStages(((text, "b"), (f"{text}c",)), 2, ("x", "y"))
    source = deepspeed.write(stages)
    tree = ast.parse(source)
    assert {type(part).__name__ for part in tree.body} == {
        "Expr", "ImportFrom", "Assign", "ClassDef", "FunctionDef",
    }  # fmt: skip
    assert read_deepspeed(source, []).modules == stages.modules
    assert read_torchtitan(torchtitan.write(stages), []).modules == stages.modules


def hostile(text: str) -> Workload:
    """Return a workload of which every name is `text`, or begins with it."""
    return Workload(
        name=text,
        ids=(f"{text}1", f"{text}2", f"{text}3"),
        edges=np.array([(0, 1), (1, 2)]),
        times={"accelerator": np.array([1.0, 2.0, 3.0])},
        memory_bytes=np.ones(3),
        transfer=np.full(3, 0.1),
        colours=np.array([0, -1, -1]),
        colour_labels=(text,),
        names=(text, text, text),
        cluster=Cluster((DeviceKind(text, 2, times="accelerator"),)),
        provenance={text: text},
    )


@name
def test_commands_pages_and_pictures_show_hostile_names(text: str, tmp_path: Path) -> None:
    workload = hostile(text)
    result = solve(workload, problem=Throughput(split="contiguous"), method="dp")
    assert result.plan is not None
    plan = replace(result.plan, method=text)
    page = html_page(simulate(workload, plan, "inference", 4), title=f"{text}: {plan.method}")
    assert page.count("<script>") == page.count("</script>") == 1
    assert page.count("<!--") == 0
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    if all(ord(c) < 128 for c in escape.plain(text)):  # others have no glyph in every font
        draw_loads(report, plan, tmp_path / "loads.svg")
    save(workload, tmp_path / "w.json")
    save(plan, tmp_path / "p.json", workload)
    paths = [str(tmp_path / "w.json"), str(tmp_path / "p.json")]
    for arguments in (
        ["verify", *paths], ["simulate", *paths], ["diff", paths[1], paths[1]],
        ["instances", "show", paths[0]], ["solve", paths[0], "--method", "greedy"],
    ):  # fmt: skip
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert all(c.isprintable() or c == "\n" for c in done.output)


def test_errors_show_hostile_names_in_one_line() -> None:
    for text in HOSTILE:
        message = str(InputError(f"{text}: wrong"))
        assert message.isprintable()


@pytest.mark.parametrize("text", HOSTILE[:4], ids=range(4))
def test_the_exported_script_runs_nothing_of_a_name(
    text: str,
) -> None:
    torch = pytest.importorskip("torch")
    from stagecut.instances.pytorch.profile import profile
    from stagecut.runtime.execution.chain import executed_schedule
    from stagecut.runtime.execution.split import split
    from stagecut.runtime.export.python_script import python_script
    from stagecut.runtime.simulate.stages import chain

    done = profile(torch.nn.Linear(2, 2), (torch.randn(2, 2),), training=False, estimate="h100")
    (piece,) = split(done, [0] * done.workload.n)
    schedule = executed_schedule("1f1b", chain([1.0], None, device=[0]), 2)

    def script(title: str) -> str:
        return python_script(
            torch.nn.Linear(2, 2), [piece], schedule, factory="m.py:make", call="make()",
            training=False, title=title,
        )  # fmt: skip

    plain, named = ast.parse(script("A plan")), ast.parse(script(f"{text}, planned by {text}"))
    assert ast.dump(ast.Module(plain.body[1:], [])) == ast.dump(ast.Module(named.body[1:], []))
    doc = named.body[0]
    assert isinstance(doc, ast.Expr)
    assert isinstance(doc.value, ast.Constant)
