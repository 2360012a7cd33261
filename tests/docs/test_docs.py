"""What the documentation shows works as written."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from project import MODULES, ROOMS, ROOT, needs_torch


def test_the_examples_of_the_readme_are_short() -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    assert all(len(example.strip().splitlines()) <= 12 for example in examples)


@pytest.mark.page("docs/explain.md")
def test_the_examples_of_the_page_on_explanations_run(tmp_path: Path) -> None:
    """Its commands say what the page shows of them, and its Python."""
    page = (ROOT / "docs" / "explain.md").read_text()
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    said = ""
    for commands in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        for command in commands.strip().splitlines():
            words = [sys.executable, "-m", *shlex.split(command)]
            done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == (0 if "plan.json" in command else 3), done.stderr
            said += done.stdout
    for line in re.findall(r"^(?:a100-80gb 0 limits|The 4 devices|Memory is full).*", page, re.M):
        assert line in said
    (devices,) = re.findall(r"^(\d+) × a100-80gb", said, re.M)
    assert 7 <= int(devices) <= 16  # how few are found depends on the time there is
    assert (tmp_path / "loads.png").exists()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/explain.md", "exec"), {})


@pytest.mark.slow
def test_the_examples_of_the_page_on_planning_models_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="the extra `runtime` is not installed")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "plan.md").read_text()
    example, script, loop = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/plan.md", "exec"), {})
    assert (tmp_path / "plan.png").exists()
    data = (
        "inputs, loss_fn = torch.randn(256, 512), torch.nn.functional.mse_loss\n"
        "data = torch.utils.data.TensorDataset(*2 * [torch.randn(2 * 8 * 256, 512)])\n"
        "loader = torch.utils.data.DataLoader(data, batch_size=8 * 256)\n"
    )
    made = script.partition("planned = ")[0]
    (tmp_path / "own.py").write_text(f"{made}\n{data}\n{loop}\ndist.destroy_process_group()")
    (tmp_path / "train.py").write_text(script)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".dev")}
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    words[-1] = "own.py"
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("package", sorted({module.parts[:2] for module in MODULES}), ids=".".join)
def test_examples_in_docstrings(
    package: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that they write go into a folder of their own."""
    has_torch = find_spec("torch") is not None
    monkeypatch.chdir(tmp_path)
    failed = []
    for module in MODULES:
        if module.parts[:2] == package and (has_torch or not needs_torch(module)):
            name = ".".join(("stagecut", *module.with_suffix("").parts)).removesuffix(".__init__")
            if doctest.testmod(import_module(name)).failed:
                failed.append(name)
    assert not failed


#: Folders of pages and pictures that `docs/hooks` makes.
MADE_FOR_THE_SITE = ("formulations/", "api/", "notebooks/", "gallery/")


def test_every_link_inside_the_documentation_leads_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            made = target.startswith(MADE_FOR_THE_SITE)
            if "://" not in target and not made:  # those the site's own build checks
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_that_is_named_is_there() -> None:
    """Paths from the root of the repository, in backticks."""
    named = re.compile(rf"`((?:{'|'.join(ROOMS)}|tests|benchmarks|docs)/[\w./-]+)(?=[`:])")
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        if page.name != "CHANGELOG.md":  # which names what was there once
            paths = [path for path in named.findall(page.read_text()) if "NAME" not in path]
            assert [path for path in paths if not (ROOT / path).exists()] == [], page.name


def test_the_glossary_has_every_term_once_in_order() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    terms = [term.casefold() for term in re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE)]
    assert len(terms) > 60
    assert terms == sorted(set(terms))
