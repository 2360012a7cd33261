"""Tensor programs whose operators are measured on this machine."""

from __future__ import annotations

import pytest

import stagecut
from stagecut.cli import run_command

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from stagecut.instances.pytorch.tensors import as_measured  # noqa: E402


def small() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 8))


def test_every_operator_takes_what_was_measured_and_nothing_is_left_behind() -> None:
    model, inputs = small(), (torch.randn(32, 64),)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    workload = stagecut.tensor_program(model, inputs)
    assert workload.program is not None
    assert workload.provenance["cost_model"] == "measured"
    assert all(o.time > 0 for o in workload.program.operators if o.role == "operator")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_time_is_divided_as_the_roofline_divides_it() -> None:
    workload = stagecut.tensor_program(small(), (torch.randn(32, 64),), estimate="h100")
    program = workload.program
    assert program is not None
    names = [str(o.name) for o in program.operators if o.role == "operator"]
    views = {str(o.name) for o in program.operators if o.view}
    seconds = {name: 1e-6 if name in views else 5e-6 for name in names}
    for one, other in zip(as_measured(program, seconds).operators, program.operators, strict=True):
        if one.role != "operator":
            assert one == other
        elif one.view:
            assert one.time == pytest.approx(1e-3)
        else:
            assert one.time == pytest.approx(5e-3)
            assert one.fixed == pytest.approx(1e-3)
            assert one.compute * other.memory == pytest.approx(other.compute * one.memory)


class AddedUp(torch.nn.Module):
    """Two parameters whose gradient is one tensor, and a third one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            torch.nn.Parameter(torch.full((8, 8), 0.1 * k)) for k in (1, 2, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ (self.one + self.two) @ self.three).sum()


def test_parameters_that_are_added_up_share_their_gradient() -> None:
    workload = stagecut.tensor_program(AddedUp(), (torch.ones(4, 8),), estimate="h100")
    assert workload.program is not None
    found = {o.name: o.gradient for o in workload.program.operators if o.role == "parameter"}
    assert found["one"] == found["two"] is not None
    assert found["three"] not in (None, found["one"])
    mesh = stagecut.DeviceMesh((2,), (stagecut.Link(1e-6, 1e10),))
    plan = stagecut.solve(workload, problem=stagecut.Sharding(mesh)).plan
    assert plan is not None
    assert stagecut.verify(workload, plan).objective == pytest.approx(plan.objective)


def test_profile_measures_programs_without_an_estimate(tmp_path, capsys) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(8, 8), torch.zeros(4, 8)\n"
    )
    output = str(tmp_path / "program.json")
    given = ("profile", f"{tmp_path}/net.py:make", "--train", "--tensors", "-o", output)
    assert run_command(given) == 0
    assert "(measured)" in capsys.readouterr().out
    assert stagecut.load(output).program is not None
    assert run_command((*given, "--fresh")) == 2
    assert "--fresh: not with --tensors" in capsys.readouterr().err
