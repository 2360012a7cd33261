"""Scripts that run plans with torch alone compute what the model computes alone."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from project import ROOT
from typer.testing import CliRunner

import stagecut
from stagecut import InputError, Plan, save
from stagecut.commands.export import export
from stagecut.instances import CallPlacement, Placement

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_models import MODELS  # noqa: E402
from mapped_run_cases import plan_of as mapped_plan  # noqa: E402
from mapped_run_cases import profiled as mapped_workload  # noqa: E402
from ranks import start_server  # noqa: E402
from script_worker import run_scripts  # noqa: E402
from torch import multiprocessing, nn  # noqa: E402

from stagecut.instances.pytorch.factory import call_text  # noqa: E402
from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.runtime.execution.chain import executed_schedule, ranks_of  # noqa: E402
from stagecut.runtime.execution.split import split  # noqa: E402
from stagecut.runtime.export.python_script import python_script  # noqa: E402
from stagecut.runtime.schedules import read_csv  # noqa: E402
from stagecut.runtime.simulate.stages import chain  # noqa: E402

HERE = ROOT / "tests" / "support" / "execution"
STEPS = 3


def script_of(model, inputs, parts: list[int], schedule: str = "1f1b", **options) -> str:
    """Return the script with the forward nodes cut into `parts`, on these devices."""
    training = options.get("training", True)
    tied = options.pop("tied", "colour")
    done = profile(model, inputs, training=training, estimate="h100", tied=tied)
    device = devices(done.workload, parts)
    pieces = split(done, device)
    passes = [1.0] * len(pieces)
    stages = chain(passes, passes if training else None, device=[p.device for p in pieces])
    made = executed_schedule(schedule, stages, 4)
    assert len(made.actions) == len(ranks_of(stages))
    options = {"factory": "m.py:make", "call": "make()"} | options
    return python_script(model, pieces, made, **options)


def devices(workload, parts: list[int]) -> list[int]:
    """Return a device per node: forward nodes in equal parts, colours together."""
    forward = [v for v in workload.order if not workload.backward[v]]
    device = np.full(workload.n, -1)
    for k, v in enumerate(forward):
        device[v] = parts[k * len(parts) // len(forward)]
    for own in workload.colour_classes:
        known = [d for d in device[list(own)] if d >= 0]
        device[list(own)] = known[0] if known else 0
    return np.maximum(device, 0).tolist()


def run(folder: Path, ranks: int, *scripts: str) -> list[list[str]]:
    """Run scripts one after the other on so many processes; return what each printed."""
    with ExitStack() as held:
        free = [held.enter_context(socket.socket()) for _ in scripts]
        for one in free:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in free]
    start_server()
    multiprocessing.start_processes(
        run_scripts, (ranks, ports, folder, scripts), nprocs=ranks, start_method="forkserver"
    )
    return [
        "".join((folder / f"{script}.{r}").read_text() for r in range(ranks)).splitlines()
        for script in scripts
    ]


def losses(name: str) -> list[float]:
    """Return the losses of the model alone, over steps of four equal microbatches."""
    model, inputs = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            made = model(*inputs)
            made = made if isinstance(made, tuple) else (made,)
            single = [t for t in made if t.numel() == 1]
            loss = (single[0] if single else sum(t.mean() for t in made)) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        found.append(total)
    return found


def test_scripts_train_as_the_model_alone(tmp_path: Path) -> None:
    cases = {
        "gpt": ([0, 1, 0, 1], "gpipe"),  # integers and masks pass, tied weights, pieces come back
        "resnet": ([1, 0], "1f1b"),  # running statistics; the stand-in loss
        "unet": ([0, 1, 0], "zb-h1"),  # skips relayed; backward passes in halves
        "mixed": ([0, 1], "1f1b"),  # regions under autocast and without gradients
    }
    (tmp_path / "models.py").write_text((HERE / "execution_models.py").read_text())
    for name, (parts, schedule) in cases.items():
        options = {"factory": "models.py:" + name, "call": name + "()"}
        text = script_of(*MODELS[name](), parts, schedule, **options)
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "infer.py").write_text(
        script_of(
            *MODELS["gpt"](), [0, 1, 0], training=False, factory="models.py:gpt", call="gpt()"
        )
    )
    copies = {"factory": "models.py:gpt", "call": "gpt()", "tied": "copies"}
    (tmp_path / "copies.py").write_text(script_of(*MODELS["gpt"](), [0, 1], **copies))
    said = run(tmp_path, 2, *(f"{name}.py" for name in cases), "copies.py", "infer.py")
    assert "\nTIED = {'token.weight': [0, 1]}\n" in (tmp_path / "copies.py").read_text()
    for name, lines in zip([*cases, "gpt"], said, strict=False):
        got = [float(line.partition("loss ")[2]) for line in lines]
        assert got == pytest.approx(losses(name), rel=1e-5), name
        assert [line.partition(":")[0] for line in lines] == [
            f"step {k + 1}" for k in range(len(lines))
        ]
    model, inputs = MODELS["gpt"]()
    with torch.no_grad():
        mean = float(model.eval()(*inputs)[0].mean())
    got = [float(line.partition("output ")[2]) for line in said[-1]]
    assert got == pytest.approx([mean] * STEPS, rel=1e-5)
    assert "stagecut" not in (tmp_path / "gpt.py").read_text()


def test_a_mapped_script_trains_as_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = ("islands:2x2", [[3, 0], [1, 2]], [[1, 0]])  # 3 sends to 2, and 0 to 1
    save(mapped_plan("mlp", *case), "p.json", mapped_workload("mlp").workload)
    (tmp_path / "my_models.py").write_text(
        (HERE / "execution_models.py").read_text()
        + "\n\ndef shown():\n"
        + "    model, (x, y) = mlp()\n"
        + "    return model, iter([(x * k, y) for k in range(24)])\n"
    )
    done = command("--model", "my_models.py:shown", "--microbatches", "2")
    assert "2 stages on 4 ranks; start: torchrun --nproc-per-node 4 out.py" in done.stdout
    text = (tmp_path / "out.py").read_text()
    assert "\nPIPELINES = [[3, 2], [0, 1]]\n" in text
    assert "    stage 0 on ranks 3 (node 1 gpu 1), 0 (node 0 gpu 0): " in text
    model, (x, y) = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wanted = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = sum(model(x * k, y) / 4 for k in range(4 * step, 4 * step + 4))
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    (lines,) = run(tmp_path, 4, "out.py")
    got = [float(line.partition("loss ")[2]) for line in lines]
    assert got == pytest.approx(wanted, rel=1e-5)


def test_what_a_script_says_is_the_plan() -> None:
    model, inputs = MODELS["mlp"]()
    text = script_of(model, inputs, [0, 1, 0], "gpipe")
    (schedule,) = re.findall(r'SCHEDULE = """\\\n(.*?)"""', text, re.DOTALL)
    assert [len(row) for row in read_csv(schedule).actions] == [16, 8]
    own = [re.findall(r"^ {12}'(.*)',$", part, re.MULTILINE) for part in text.split("class ")[1:]]
    assert sorted(own[0])[:2] == ["layers.0.bias", "layers.0.weight"]
    assert sorted(name for names in own for name in names) == sorted(
        name for name, _ in model.named_parameters()
    )
    assert "linear_4 = " in text.split("class ")[-1]


class Odd(nn.Module):
    """A model with a constant of its own."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.numbers = numbers

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        shift = torch.tensor([float(k) for k in range(self.numbers)])
        return self.second(self.first(x) + shift.sum()) * scale


def test_small_constants_are_written_and_large_ones_refused() -> None:
    inputs = (torch.randn(2, 4), torch.ones(1))
    text = script_of(Odd(5), inputs, [0, 1])
    assert "torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float32)" in text
    with pytest.raises(InputError, match="has 300 numbers, too many"):
        script_of(Odd(300), inputs, [0, 1])
    with pytest.raises(InputError, match="is a single number"):
        script_of(Odd(5), (torch.randn(2, 4), torch.tensor(1.0)), [0, 1])


def test_parts_of_a_model_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number, self.takes, self.stage = (nn.Linear(4, 4) for _ in range(3))
            self.gives = nn.Parameter(torch.ones(4))
            self.register_buffer("plan_device", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.stage(self.takes(self.number(x)).relu() * self.gives + self.plan_device)

    model, x = Named(), torch.randn(2, 4)
    text = script_of(model, (x,), [0, 1], factory="typing:Any", call="Any")
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    made: dict[str, Any] = {"__name__": "script"}
    exec(text, made)
    torch.testing.assert_close(made["Stage1"](model)(*made["Stage0"](model)(x))[0], model(x))


@pytest.mark.parametrize(
    ("factory", "lines"),
    [
        ("m.py:make", ["sys.path.insert(0, '.')", "from m import make"]),
        ("some/where/m.py:make", ["sys.path.insert(0, 'some/where')", "from m import make"]),
        ("package.m:make", ['sys.path.insert(0, "")', "from package.m import make"]),
    ],
)
def test_the_factory_is_imported_from_where_it_is(factory: str, lines: list[str]) -> None:
    text = script_of(*MODELS["mlp"](), [0, 1], factory=factory)
    assert all(line in text.splitlines() for line in lines)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and a plan for it."""
    (tmp_path / "my_model.py").write_text(
        "import torch\n"
        "def make(batch=4):\n"
        "    torch.manual_seed(0)\n"
        "    parts = [torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]\n"
        "    return torch.nn.Sequential(*parts), torch.randn(batch, 8)\n"
        "ready = torch.nn.Linear(3, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_model", None)
    parts = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
    done = profile(nn.Sequential(*parts), (torch.randn(4, 8),), training=True, estimate="h100")
    plan = Plan(
        done.workload.name, done.workload.fingerprint, stagecut.accelerators_and_cpus(2),
        stagecut.Throughput(), Placement(np.array(devices(done.workload, [0, 1]))), 1.0, 0.0,
        "test", done.workload.time_unit,
    )  # fmt: skip
    save(done.workload, "w.json")
    save(plan, "p.json", done.workload)
    return tmp_path


def command(*arguments: str):
    """Run `stagecut export p.json --to python`."""
    app = typer.Typer()
    app.command()(export)
    return CliRunner().invoke(app, ["p.json", "--to", "python", "-o", "out.py", *arguments])


def test_the_command_writes_a_script(files: Path) -> None:
    done = command("--model", "my_model.py:make", "--batch", "4", "--workload", "w.json")
    assert done.exit_code == 0, done.exception
    assert "2 stages on 2 ranks; start: torchrun --nproc-per-node 2 out.py" in done.stdout
    text = (files / "out.py").read_text()
    assert "    made = make(batch=4)\n" in text
    assert len(text.splitlines()) < 230
    assert "\nTRAINING = True\n" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--model: the script makes the model"),
        (["--model", "my_model.py:none"], "it has no 'none'"),
        (["--model", "my_model.py:ready"], "has no '0.weight'|has other nodes|it has"),
        (["--model", "my_model.py:make", "--batch", "9", "--workload", "w.json"], "output_bytes"),
        (["--model", "my_model.py:make", "--schedule", "pipedream"], "is not one of gpipe"),
    ],
)
def test_the_command_refuses_in_one_line(files: Path, arguments: list[str], reason: str) -> None:
    done = command(*arguments)
    assert isinstance(done.exception, InputError)
    assert any(part in str(done.exception) for part in reason.split("|"))
    assert not (files / "out.py").exists()


@pytest.mark.usefixtures("files")
def test_plans_that_are_no_placements_are_refused() -> None:
    workload = stagecut.load("w.json")
    cluster = stagecut.accelerators_and_cpus(2)
    device = np.array(devices(workload, [0, 1]))
    calls = CallPlacement(device, np.zeros(workload.n, int))
    plan = Plan(
        workload.name, workload.fingerprint, cluster, stagecut.Latency(), calls, 1.0, 0.0, "test",
        workload.time_unit,
    )  # fmt: skip
    save(plan, "p.json", workload)
    done = command("--model", "my_model.py:make", "--workload", "w.json")
    assert "python: the plan is for latency" in str(done.exception)


@pytest.mark.usefixtures("files")
def test_the_call_is_that_of_the_factory() -> None:
    assert call_text("my_model.py:make", 8) == "make(batch=8)"
    assert call_text("my_model.py:make") == "make()"
    assert call_text("my_model.py:ready") == "ready"
