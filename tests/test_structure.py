"""The house as ARCHITECTURE.md draws it: arrows never run back, every module is in the wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from project import MODULES, ROOMS, ROOT, needs_torch

MAY_IMPORT = {
    "instances": {"instances"},
    "formulations": {"formulations", "instances"},
    "solvers": {"solvers", "formulations", "instances"},
    "runtime": {"runtime", "instances"},
}


def imported_rooms(module: Path) -> set[str]:
    """Rooms that a module imports, at the top or inside functions."""
    package = ["stagecut", *module.parts[:-1]]
    rooms = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [*base, *(node.module or "").split(".")]
            targets = [[*names, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for target in targets:
            parts = [part for part in target if part]
            if parts[0] == "stagecut" and len(parts) > 1:
                rooms.add(parts[1] if parts[1] in ROOMS else "root")
    return rooms


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_arrows_never_run_back(module: Path) -> None:
    room = module.parts[0]
    if room in MAY_IMPORT:
        assert imported_rooms(module) <= MAY_IMPORT[room]


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether numba compiles a function."""
    called = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(isinstance(name, ast.Name) and name.id in ("njit", "inner") for name in called)


def test_kernels_alone_have_no_annotations() -> None:
    """And all have docstrings. mypy accepts functions without annotations everywhere."""
    wrong = []
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            said = ast.get_docstring(node) if is_kernel(node) else node.returns
            if said is None:
                wrong.append(f"{module}: {node.name}")
    assert not wrong


def test_solving_needs_no_torch() -> None:
    code = "import sys, stagecut, stagecut.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / ".dev")})


def test_methods_that_auto_begins_with_need_no_pyomo() -> None:
    """It takes a second to import, which a short time limit does not have."""
    modules = [
        f"stagecut.solvers.{name}.auto" for name in ("throughput", "latency", "training", "mapping")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('pyomo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / ".dev")})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the files git knows, as a release would be."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_each_can_be_imported(wheel: Path, tmp_path: Path) -> None:
    wanted = {f"stagecut/{module}" for module in MODULES}
    wanted |= {f"stagecut/{name}" for name in ("__init__.py", "cli.py", "py.typed")}
    with zipfile.ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())
        archive.extractall(tmp_path)
    names = sorted(
        "stagecut." + ".".join(module.with_suffix("").parts).removesuffix(".__init__")
        for module in MODULES
        if not needs_torch(module)
    )
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
