"""What the site does beyond its pages: it makes some from the code, and sets mathematics.

mkdocs calls the functions named ``on_…``; see its page on hooks. Mathematics is set as MathML while
the site is built, so that a reader needs neither a script nor a network for it.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

import nbformat
from blocks import typeset
from command_line import commands_page
from gallery import made, with_outputs
from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from pages import ROOT, api, records_table, statements

ROOMS = ("api", "commands", "formulations", "instances", "runtime", "solvers")
#: Pages of the root of the repository that belong to the site, too.
FROM_ROOT = {
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}


#: Where the table of the records goes.
TABLE = "<!-- the table of records -->"
#: Where mkdocstrings finds the package: `.dev/stagecut` holds itself, and whoever walks through it
#: never ends.
PACKAGE = ROOT / "build" / "package" / "stagecut"


def on_startup(**_: object) -> None:
    """Lay out the package as it is installed: its modules and rooms, and nothing else."""
    PACKAGE.mkdir(parents=True, exist_ok=True)
    for source in (*ROOT.glob("*.py"), *(ROOT / room for room in ROOMS)):
        link = PACKAGE / source.name
        if not link.is_symlink():
            link.symlink_to(source)


class InlineMath(Extension):
    """Equations at the beginning of a paragraph belong to it; Markdown takes them for blocks."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Take ``math`` off the list of blocks, before other extensions copy it."""
        md.block_level_elements.remove("math")


def on_config(config: MkDocsConfig) -> None:
    """Read Markdown so that inline mathematics stays inline."""
    config.markdown_extensions.insert(0, InlineMath())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, those of the root, and the notebooks."""
    for page in (*statements(), *api()):
        files.append(File.generated(config, page.path, content=page.text))
    sys.path.insert(0, str(PACKAGE.parent))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for name, target in FROM_ROOT.items():
        text = (ROOT / name).read_text()
        files.append(File.generated(config, target, content=_moved(text)))
    for name, picture in made().items():
        files.append(File.generated(config, f"gallery/{name}", content=picture))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = _rendered(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def _rendered(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its outputs as Markdown, and its pictures by name."""
    cells = nbformat.read(notebook, as_version=4)
    for cell in cells.cells:
        if cell.cell_type == "markdown":
            cell.source = typeset(cell.source)
        for output in cell.get("outputs", ()):  # a formulation is Markdown: set its equations
            data = output.get("data", {})
            if "text/markdown" in data:
                data["text/markdown"] = typeset(data["text/markdown"])
    text, resources = MarkdownExporter().from_notebook_node(cells)
    pictures = {f"{notebook.stem}_{name}": data for name, data in resources["outputs"].items()}
    for name in resources["outputs"]:
        text = text.replace(f"]({name})", f"]({notebook.stem}_{name})")
    text = text.replace("](../docs/", "](../").replace("](../../docs/", "](../")
    return _moved(text.replace(".ipynb)", ".md)")), pictures


def _moved(text: str) -> str:
    """Return a page of the root with its links as they are in the site."""
    text = re.sub(r"\]\(docs/", "](", text)
    for name, target in FROM_ROOT.items():
        text = text.replace(f"]({name}", f"]({target}")
    return text


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set the equations of the pages written by hand."""
    here = page.file.src_uri
    if here.startswith(("formulations/", "notebooks/", "api/")):
        return markdown
    up = posixpath.relpath(".", posixpath.dirname(here) or ".")
    for name, target in FROM_ROOT.items():
        markdown = markdown.replace(f"](../{name}", f"]({up}/{target}")
    if here == "gallery.md":
        markdown = with_outputs(markdown)
    markdown = markdown.replace(TABLE, records_table() if TABLE in markdown else "")
    return typeset(markdown)
