"""A model cut into pieces computes what the model computes, whatever the placement."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest

import stagecut
from stagecut import InputError

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from execution_cases import contiguous, scattered  # noqa: E402
from execution_models import MODELS  # noqa: E402
from torch import nn  # noqa: E402

from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.runtime.execution.split import PieceModule, split  # noqa: E402
from stagecut.runtime.execution.stage import mean_loss  # noqa: E402


def run_pieces(
    pieces: Sequence[PieceModule], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Forward and backward, piece by piece, nothing passing but what the pieces say."""
    given: list[tuple[torch.Tensor, ...]] = []
    made: list[tuple[torch.Tensor, ...]] = []
    values = tuple(inputs)
    for piece in pieces:
        assert len(values) == len(piece.inputs)
        values = tuple(
            t.detach().requires_grad_(piece.values[name].grad)
            for name, t in zip(piece.inputs, values, strict=True)
        )
        given.append(values)
        values = piece.module(*values)
        made.append(values)
        for name, t in zip(piece.outputs, values, strict=True):
            value = piece.values[name]
            assert (value.shape, value.dtype) == (tuple(t.shape), t.dtype)
            assert value.grad >= t.requires_grad
    mean_loss(values).backward()
    for before, after in reversed(list(zip(given[1:], made[:-1], strict=True))):
        pairs = [
            (out, grad.grad)
            for out, grad in zip(after, before, strict=True)
            if out.requires_grad and grad.grad is not None
        ]
        if pairs:
            torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
    return values


def tensors(result: object) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        pytest.param(name, depth, marks=[pytest.mark.slow] * ((k + bool(depth)) % 2))
        for k, name in enumerate(MODELS)
        for depth in (None, 1)
    ],
)
def test_pieces_compute_what_the_model_computes(name: str, depth: int | None) -> None:
    model, inputs = MODELS[name]()
    alone = copy.deepcopy(model)
    done = profile(model, inputs, training=True, estimate="h100", depth=depth)
    alone.train()
    expected = tensors(alone(*inputs))
    mean_loss(expected).backward()
    gradients = {key: p.grad for key, p in alone.named_parameters()}
    buffers = {key: b.clone() for key, b in model.named_buffers()}
    for device in (contiguous(done, 3), *(scattered(done, 2 + seed, seed) for seed in range(3))):
        model.zero_grad()
        with torch.no_grad():
            for key, b in model.named_buffers():
                b.copy_(buffers[key])
        pieces = split(done, device)
        found = run_pieces(pieces, inputs)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.grad, gradients[key], rtol=1e-5, atol=1e-6)
        for key, b in model.named_buffers():
            torch.testing.assert_close(b, dict(alone.named_buffers())[key])
        names = [n for piece in pieces for n in piece.parameters]
        assert set(names) == {key for key, _ in model.named_parameters()}
        own = {id(x) for piece in pieces for x in piece.module.parameters()}
        assert own == {id(x) for piece in pieces for x in piece.parameters.values()}
        assert sorted(v for piece in pieces for v in piece.nodes) == [
            v for v in range(done.workload.n) if not done.workload.backward[v]
        ]


def test_contiguous_placements_have_a_piece_per_device() -> None:
    model, inputs = MODELS["mlp"]()
    done = profile(model, inputs, training=True, estimate="h100")
    pieces = split(done, contiguous(done, 3))
    assert [piece.index for piece in pieces] == [0, 1, 2]
    assert len({piece.device for piece in pieces}) == 3
    labels = next(iter(pieces[0].inputs[1:]))
    assert all(labels in piece.inputs for piece in pieces)  # relayed to the loss
    assert not pieces[0].values[labels].grad


class Branches(nn.Module):
    """Two ways that do not wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.a(x) + self.b(x)).sum()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_pieces_come_in_the_order_of_the_plan(order: tuple[int, ...]) -> None:
    model, x = Branches(), torch.randn(2, 4)
    done = profile(model, (x,), training=True, estimate="h100")
    device = [{"linear": 0, "linear_1": 1}.get(str(n).split(".")[0], 2) for n in done.workload.ids]
    pieces = split(done, device, order)
    assert tuple(piece.device for piece in pieces) == order
    assert torch.equal(run_pieces(pieces, (x,))[0], model(x))


class ReturnsTwice(nn.Module):
    """Returns a value at two positions, with another one between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        hidden = self.a(x)
        return hidden, [self.b(hidden), hidden]


def test_what_a_model_returns_twice_keeps_both_places() -> None:
    model, x = ReturnsTwice(), torch.randn(2, 4)
    done = profile(model, (x,), training=True, estimate="h100")
    first, (other, again) = model(x)
    found = run_pieces(split(done, contiguous(done, 2)), (x,))
    assert len(found) == 3
    assert all(map(torch.equal, found, (first, other, again)))


class Keywords(nn.Module):
    """Names of a module and of a parameter that Python keeps for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("lambda", nn.Linear(4, 4))
        self.register_parameter("global", nn.Parameter(torch.ones(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule("lambda")(x) * self.get_parameter("global")


def test_names_may_be_keywords_of_python() -> None:
    model, x = Keywords(), torch.randn(2, 4)
    done = profile(model, (x,), training=True, estimate="h100")
    assert done.traced.how == "torch.export"
    pieces = copy.deepcopy(split(done, contiguous(done, 2)))
    assert torch.equal(run_pieces(pieces, (x,))[0], model(x))


def test_names_of_torchs_graphs_are_told() -> None:
    model = nn.Sequential(OrderedDict(graph=nn.Linear(4, 4), out=nn.Linear(4, 4)))
    done = profile(model, (torch.randn(2, 4),), training=True, estimate="h100")
    assert "have the name of its graph; rename that" in done.traced.because


class Bidirectional(nn.Module):
    """Modules whose names are almost those of backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"forward_": nn.Linear(4, 4), "backward_": nn.Linear(4, 4)})
        self.BackwardHead = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.BackwardHead(self.body["forward_"](x) + self.body["backward_"](x.flip(0)))


@pytest.mark.parametrize("training", [False, True])
def test_names_of_modules_do_not_make_a_plan_one_for_training(
    training: bool, tmp_path: Path
) -> None:
    model, x = Bidirectional(), torch.randn(2, 4)
    done = profile(model, (x,), training=training, estimate="h100", depth=2).workload
    plan = stagecut.solve(
        done, done.cluster.with_counts(accelerators=1, cpus=0), stagecut.Throughput("contiguous")
    ).plan
    stagecut.save(plan, tmp_path / "plan.json", done)
    assert stagecut.split_model(tmp_path / "plan.json", model, (x,)).training is training


class Viewed(nn.Module):
    """Changes a tensor in place while a view of it is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        seen = y.view(2, 8)
        y += self.b(torch.relu(y))
        y *= self.b(torch.relu(y))
        return seen.sum() + y.sum()


def test_what_cannot_pass_is_refused() -> None:
    model, x = Viewed(), torch.randn(4, 4)
    done = profile(model, (x,), training=True, estimate="h100")
    workload = done.workload
    device = [0] * workload.n
    for name in ("linear_1", "linear_2"):
        device[workload.index[name]] = 1
    run_pieces(split(done, [0] * workload.n), (x,))
    with pytest.raises(InputError, match="changed in place"):
        split(done, device)


class Target(nn.Module):
    """Compares with a target that it makes itself, and goes on with what it compared."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden, target = self.a(x), self.b(x).detach()
        return nn.functional.mse_loss(hidden, target) + nn.functional.mse_loss(self.c(hidden), y)


def test_what_is_compared_with_a_target_does_not_wait_for_it() -> None:
    model, given = Target(), (torch.randn(2, 4), torch.randn(2, 4))
    done = profile(model, given, training=True, estimate="h100")
    first = ("linear.", "linear_2", "mse_loss_1")  # without the target
    device = [int(not f"{node}.".startswith(first)) for node in done.workload.ids]
    pieces = split(done, device)
    assert [piece.device for piece in pieces] == [0, 1]
    assert torch.equal(run_pieces(pieces, given)[0], model(*given))


class Average(nn.Module):
    """Subtracts a running mean that it assigns anew, in two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, x = self.mean, self.layer(x)
        self.mean = 0.5 * before + x.detach().mean(0)
        return x - self.mean + before


def test_a_buffer_that_a_part_assigns_anew_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Average(), nn.Linear(4, 4))
    alone, batches = copy.deepcopy(model), torch.randn(3, 2, 4)
    done = profile(model, (batches[0],), training=True, estimate="h100")
    assert done.traced.how == "torch.export"
    with pytest.raises(InputError, match="a buffer that changes, and so does an earlier piece"):
        split(done, [int(node == "mean") for node in done.workload.ids])
    pieces = split(done, contiguous(done, 2))
    for x in batches:
        torch.testing.assert_close(run_pieces(pieces, (x,))[0], alone(x))
    torch.testing.assert_close(model[1].mean, alone[1].mean)
