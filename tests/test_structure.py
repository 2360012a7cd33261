"""The house as ARCHITECTURE.md draws it: arrows never run back, every module is in the wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from textwrap import dedent

import networkx as nx
import pytest
import typer
from project import MODULES, ROOMS, ROOT, MadeOnce, needs_torch

from stagecut import cli
from stagecut.runtime.export.registry import LAUNCHERS

MAY_IMPORT = {
    "instances": {"instances"},
    "formulations": {"formulations", "instances"},
    "solvers": {"solvers", "formulations", "instances"},
    "runtime": {"runtime", "instances"},
}

#: What a room has in common, and its problems build on, from the lowest layer up: a layer imports
#: of its room itself and the layers before it.
COMMON = {
    "instances": ({"common"}, {"model"}),
    "formulations": ({"task", "program", "linear"}, {"rules"}),
    "solvers": ({"core"},),
}
#: Not in a room, but named by commands.
CLI = Path("cli.py")


def module_name(module: Path) -> str:
    return ".".join(module.with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_name(module) for module in MODULES}


@cache  # not for all workers of xdist, when they collect the tests
def imported(module: Path) -> set[str]:
    """Modules of ours that a module imports: at the top, inside functions, and for types alone."""
    package = ["stagecut", *module.parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")]
            targets = [[*base, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for target in targets:
            parts = [part for part in target if part]
            if parts[0] != "stagecut":
                continue
            whole, above = ".".join(parts[1:]), ".".join(parts[1:-1])
            found.add(whole if whole in NAMES or not above else above)
    return found


def room_of(name: str) -> str:
    return name.split(".")[0] if name.split(".")[0] in ROOMS else "root"


def test_arrows_never_run_back() -> None:
    back = {
        f"{module} imports {name}"
        for module in MODULES
        for name in imported(module)
        if room_of(name) not in MAY_IMPORT.get(module.parts[0], {room_of(name)})
    }
    assert not back


def test_what_a_room_has_in_common_knows_nothing_of_the_rest() -> None:
    wrong = set()
    for module in MODULES:
        room = module.parts[0]
        used = [name.split(".")[1:2] for name in imported(module) if room_of(name) == room]
        allowed: set[str] = set()
        for layer in COMMON.get(room, ()):
            allowed |= layer
            if Path(*module.parts[1:2]).stem in layer:
                wrong |= {
                    f"{module}: {name}" for name in used if not name or name[0] not in allowed
                }
    assert not wrong


def test_no_circle_of_imports() -> None:
    modules = (*MODULES, CLI)
    graph = nx.DiGraph([(module_name(m), name) for m in modules for name in imported(m)])
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert not circles


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether numba compiles a function."""
    called = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    compilers = ("njit", "inner", "uncounted", "kernel")
    return any(isinstance(name, ast.Name) and name.id in compilers for name in called)


UNSPLIT = "a kernel whose steps have not been measured as functions of their own"

OPTIONS = "a public function, whose options are keywords that stand alone"

#: Functions above 80 lines or 8 parameters, each with its reason.
LARGE = {
    "api/sweeps.py: rank_schedules": OPTIONS,
    "instances/pytorch/profile.py: profile": OPTIONS,
    "runtime/execution/own_loop/loop.py: __init__": OPTIONS,
    "runtime/simulate/stages.py: chain": OPTIONS,
    "runtime/simulate/engine_kernel.py: _execute": "measured: 20 times as slow in steps",
    "solvers/latency/mincut_kernel.py: least_load": UNSPLIT,
    "solvers/throughput/dp_kernel.py: relax": "measured: 5 times as slow in steps, as it says",
    "solvers/job/stream/dp_kernel.py: extend_plans": "measured: not inlined, as it says",
}


def is_command(module: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether each parameter of a function is an option of the command line."""
    return module.parts[0] == "commands" and any(
        "options." in ast.unparse(argument.annotation)
        or "typer." in ast.unparse(argument.annotation)
        for argument in function.args.args
        if argument.annotation is not None
    )


def too_large(module: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has more than 80 lines, its docstring not counted, or 8 parameters.

    Of commands the signature does not count: Typer makes an option of each parameter.
    """
    body, given = function.body, function.args
    documented = ast.get_docstring(function) is not None and len(body) > 1
    lines = body[-1].end_lineno - body[documented].lineno + 1
    if is_command(module, function):
        return lines > 80
    lines += body[0].lineno - function.lineno
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return lines > 80 or len([name for name in names if name != "self"]) > 8


def test_functions_are_short() -> None:
    found = {
        f"{module}: {node.name}"
        for module in MODULES
        for node in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and too_large(module, node)
    }
    assert found == set(LARGE)


def test_files_are_thoughts() -> None:
    long = [str(m) for m in MODULES if len((ROOT / m).read_text().splitlines()) > 700]
    assert not long


def test_no_two_classes_have_one_name() -> None:
    names = [
        node.name
        for module in MODULES
        for node in ast.parse((ROOT / module).read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    assert not {name for name in names if names.count(name) > 1}


def test_every_deliberate_fault_is_in_a_line_that_is_there() -> None:
    listed = tomllib.loads((ROOT / "tests" / "mutants" / "mutants.toml").read_text())["mutant"]
    assert len(listed) >= 60
    for row in listed:
        assert (ROOT / row["file"]).read_text().count(row["old"].lstrip("\n")) == 1, row
        for test in row["tests"].split():
            assert (ROOT / "tests" / test.partition("::")[0]).exists(), row


def test_no_page_holds_the_marks_of_a_merge() -> None:
    """git leaves them where two changes contradict each other; Python's own files fail to parse."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        assert not re.search(r"^(<{7}|={7}|>{7})( |$)", path.read_text(), re.M), path


def test_kernels_alone_have_no_annotations() -> None:
    """All have docstrings, and files named for them; mypy accepts all without annotations."""
    wrong = []
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if is_kernel(node) and "kernel" not in module.stem:
                wrong.append(f"{module}: {node.name}, in a file that is not named for kernels")
            said = ast.get_docstring(node) if is_kernel(node) else node.returns
            if said is None and not (is_kernel(node) and "mapping" in module.parts):
                wrong.append(f"{module}: {node.name}")
    assert not wrong


def test_the_front_door_opens_without_slow_packages(tmp_path: Path) -> None:
    """Help, a wrong option, a missing file: each in a process of its own."""
    for arguments in (["--help"], ["solve", "--nope"], ["solve", "missing.json"], None):
        code = f"""
            import sys, stagecut
            if {arguments} is not None:
                from stagecut.cli import run_command
                run_command({arguments})
            slow = "pandas networkx numba pyomo matplotlib torch scipy requests highspy".split()
            sys.exit(str([name for name in slow if name in sys.modules] or ""))
        """
        done = subprocess.run(
            [sys.executable, "-c", dedent(code)],
            env={"PYTHONPATH": str(ROOT / ".dev")}, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert "[" not in done.stderr, (arguments, done.stderr)


def test_help_of_commands_is_theirs() -> None:
    """The list of commands says of each what the command itself says, without importing it."""
    group = typer.main.get_command(cli.app)
    group.list_commands(None)  # type: ignore[attr-defined]
    for name, stand_in in group.commands.items():  # type: ignore[attr-defined]
        assert (cli.load_command(name).help or "").split("\n")[0] == stand_in.help


def test_messages_name_options_that_there_are() -> None:
    """What a text of the product calls an option is one of a command, or of a named launcher."""
    known = {"--help", "--version", "--nproc-per-node", "--solvers"}
    for name in cli._COMMANDS:
        command = cli.load_command(name)
        for part in (command, *getattr(command, "commands", {}).values()):
            known.update(text for parameter in part.params for text in parameter.opts)
            known.update(text for parameter in part.params for text in parameter.secondary_opts)
    launchers = {f"{name}.py" for name in LAUNCHERS}  # they name options of their own
    named = {
        (module.as_posix(), option)
        for module in MODULES
        if module.name not in launchers
        for node in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", node.value)
    }
    assert sorted(pair for pair in named if pair[1] not in known) == []


def test_methods_that_auto_begins_with_need_no_pyomo() -> None:
    """It takes a second to import, which a short time limit does not have."""
    modules = [
        f"stagecut.solvers.{name}.auto" for name in ("throughput", "latency", "job", "mapping")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('pyomo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / ".dev")})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, made_once: MadeOnce) -> Path:
    """A wheel built from the files git knows, as a release would be."""

    def build(out: Path) -> None:
        source = tmp_path_factory.mktemp("source")
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.splitlines()  # fmt: skip
        for name in listed:
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_bytes((ROOT / name).read_bytes())
        command = ["build", "--wheel", "--no-isolation", "-o", str(out), str(source)]
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)

    (built,) = made_once("wheel", build).glob("*.whl")
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


def test_the_wheel_holds_the_records_and_checks_them(
    wheel: Path, tmp_path: Path, benchmarks: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-m", "stagecut", "records", "check"]
    environment = {"PYTHONPATH": str(tmp_path), "STAGECUT_BENCHMARKS": str(benchmarks)}
    done = subprocess.run(
        [*command, "--below", "placement/latency/LayerGraphs/gnmt"],
        cwd=tmp_path, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 record verified" in done.stdout
