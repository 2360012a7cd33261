"""The site builds without a warning, and shows what the code says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from project import ROOT, MadeOnce

import stagecut
from stagecut.api.records import read_records

#: To build it takes a minute of two processors; other tests read links, examples and docstrings.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(made_once: MadeOnce) -> Path:
    """The site, built once: two builds at a time would write the same files in `build/`."""

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once("site", build)


def test_every_public_name_has_an_entry(site: Path) -> None:
    text = "".join(path.read_text() for path in (site / "api").glob("*.html"))
    entries = set(re.findall(r'id="stagecut[\w.]*\.(\w+)"', text))
    assert set(stagecut.__all__) - {"__version__"} <= entries


def test_every_numbered_equation_is_on_a_page(site: Path) -> None:
    for path in (ROOT / "formulations").glob("*/*.py"):
        numbers = re.findall(r"^    \S.* {2,}\((\d+)\)$", path.read_text(), re.MULTILINE)
        if numbers:
            page = (site / "formulations" / f"{path.parent.name}.html").read_text()
            missing = [n for n in numbers if f'id="{path.stem}-{n}"' not in page]
            assert not missing, f"{path}: {missing}"


def test_equations_are_mathematics(site: Path) -> None:
    """No LaTeX is left for a script to set, and nothing in an equation could not be translated."""
    for path in (site / "formulations").glob("*.html"):
        text = path.read_text()
        assert text.count("<math") > 10
        assert not re.search(r"<mi>\\|\$[a-z]_", text), path.name


#: What Markdown looks like where nothing has rendered it, a character that fonts have not, and
#: (docstrings of the API are read as they are) a subscript.
MARKDOWN = re.compile(
    r"\*\*\w|\w\*\*|\|\s*:?-{3,}|\]\([\w./#]|`|^#+ |[□\ufffd\u29f5]", re.MULTILINE
)
SUBSCRIPT = re.compile(r"(?<![\w.])(?:[A-Za-z]+|[α-ωΣ])_(?:\{|[A-Za-z0-9α-ω](?![\w-]))")


def test_nothing_on_a_page_is_left_as_markdown(site: Path) -> None:
    found = {}
    for page in site.rglob("*.html"):
        for text in re.findall(r"<article.*</article>", page.read_text(), re.DOTALL):
            code = r"<(pre|code|script|style|thead)\b.*?</\1>"
            code += r'|<table[^>]*class="dataframe".*?</table>'  # equations as a model names them
            shown = unescape(re.sub(r"<[^>]*>", "", re.sub(code, "", text, flags=re.DOTALL)))
            left = MARKDOWN.findall(shown)
            left += SUBSCRIPT.findall(shown) if page.parent.name != "api" else []
            if left:
                found[page.name] = left
    assert found == {}


@pytest.mark.parametrize(
    ("sought", "page"),
    [
        ("out of memory", "troubleshooting.html"),
        ("FSDP", "sharding.html"),
        ("ZeRO", "sharding.html"),
        ("LoRA", "plan.html"),
        ("DDP", "sharding.html"),
    ],
)
def test_what_people_look_for_has_a_section(site: Path, sought: str, page: str) -> None:
    """The search puts titles first, so that each leads to where it is dealt with."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    titled = {
        part["location"].partition("#")[0]
        for part in index["docs"]
        if sought.casefold() in unescape(part["title"]).casefold()
    }
    assert page in titled


def test_every_formulation_has_its_table_of_symbols(site: Path) -> None:
    for path in (site / "formulations").glob("*.html"):
        assert "<th>in the model</th>" in path.read_text(), path.name
    text = (site / "formulations" / "schedule.html").read_text()
    assert "gives back when it ends</td>" in text  # a meaning that is wider than its column


def test_every_picture_is_there_and_says_what_it_shows(site: Path) -> None:
    """Above all those of the gallery, which the commands on the page have made."""
    seen = set()
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<img [^>]*>", page.read_text()):
            source = re.findall(r'src="([^"]*)"', tag)[0]
            alt = re.findall(r'alt="([^"]*)"', tag)
            if "://" not in source:
                assert (page.parent / source).exists(), f"{page.name}: {source}"
            if page.name == "gallery.html":
                assert len(alt[0]) > 40, source
                seen.add(Path(source).stem)
    assert seen >= {"plan", "graph", "timeline", "mapping", "front", "certificate", "measured"}
    assert "nodes moved" in (site / "gallery.html").read_text()
    assert (site / "gallery" / "timeline.html").exists()


def test_every_record_is_in_the_table(site: Path) -> None:
    text = (site / "records.html").read_text()
    for record in read_records(ROOT / "records"):
        assert text.count(f"<td>{record.instance}</td>") >= 1
    assert text.count("<tr>") == len(read_records(ROOT / "records")) + 1
