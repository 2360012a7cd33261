"""Models that importers stumble over: each is traced the stated way, and counted as torch does."""

from __future__ import annotations

from pathlib import Path

import pytest

import stagecut
from stagecut import InputError

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from odd_models import CASES  # noqa: E402
from torch_counts import counted_by_torch, saved_bytes  # noqa: E402

from stagecut.instances.pytorch import operator_times  # noqa: E402
from stagecut.instances.pytorch.profile import profile  # noqa: E402
from stagecut.instances.pytorch.record import ON_CPUS  # noqa: E402
from stagecut.instances.pytorch.tracing.unchanged import unchanged  # noqa: E402

PARTS, NUMBERS = "torch.export in parts", "operators on these numbers"

#: How a model is traced if not by `torch.export`, and what the reason says.
OTHERWISE = {
    "branch": (NUMBERS, "its code depends on numbers (odd_models.py"),
    "branch_in_a_chain": (PARTS, "3: its code depends on numbers (odd_models.py"),
    "branch_in_a_chain_by_hand": (PARTS, "layers.1, layers.2: its code depends on numbers"),
    "loop_until_small": (PARTS, "1: its code depends on numbers (odd_models.py"),
    "experts_by_numbers": (PARTS, "1: its code depends on numbers (odd_models.py"),
    "numpy_inside": (PARTS, "in module 1, odd_models.py"),
    "branch_beside_a_residual": (PARTS, "b: its code depends on numbers (odd_models.py"),
    "functional_transforms": (NUMBERS, "torch.func (vmap)"),
    "functional_transforms_inside": (PARTS, "1: OperatorState: torch.func (vmap)"),
    "loop_over_numbers": (NUMBERS, "its code depends on numbers (odd_models.py"),
    "transformer": (PARTS, "decoder: its code depends on numbers (transformer.py"),
}

#: In training only, where an exported graph would lose the backward pass.
OTHERWISE_IN_TRAINING = {
    "checkpointed_block": (PARTS, "1: activation checkpointing"),
    "custom_autograd": (PARTS, "Sign: an autograd function"),
    "checkpointed": (PARTS, "Checkpointed: activation checkpointing"),
    "checkpointed_reentrant": (PARTS, "Checkpointed: activation checkpointing"),
}

REFUSED = {
    "scripted": "torch.jit",
    "double_backward": "fails on its inputs: .*in module Does, odd_models.py",
}

#: What torch 2.6 cannot export by its own fault: `vmap`, a bidirectional LSTM, spectral norm.
FAULTS_OF_2_6 = frozenset(
    {"functional_transforms", "functional_transforms_inside", "lstm", "parametrized"}
)


def profiled(name: str, training: bool, folder: Path | None = None):
    """Profile a case, estimated or, if a cache folder is given, measured."""
    torch.manual_seed(0)
    model, args, kwargs = CASES[name]()
    how = {"estimate": "h100"} if folder is None else {"cache": folder}
    return profile(model, args, kwargs, training=training, **how), model, args, kwargs


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("name", "training"),
    [
        *(
            pytest.param(name, True, id=f"{name}-training")
            for name in sorted(set(CASES) - set(REFUSED))
        ),
        *(
            pytest.param(
                name,
                False,
                id=f"{name}-inference",
                # where training shows how it is traced
                marks=() if name in OTHERWISE_IN_TRAINING else pytest.mark.slow,
            )
            for name in sorted(set(CASES) - set(REFUSED))
        ),
    ],
)
def test_odd_models_are_what_torch_makes_of_them(name: str, training: bool) -> None:
    if name in FAULTS_OF_2_6 and torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 cannot export it")
    done, model, args, kwargs = profiled(name, training)
    how, words = OTHERWISE.get(name, ("torch.export", ""))
    if training:
        how, words = OTHERWISE_IN_TRAINING.get(name, (how, words))
    assert done.traced.how == how
    assert (done.workload.provenance["traced_by"], words in done.traced.because) == (how, True)
    assert all("\n" not in note for note in done.notes)
    model = getattr(model, "_orig_mod", model)
    counts = counted_by_torch(model, args, kwargs, training)
    # A reentrant checkpoint runs as one that is not, which stops recomputing once it has enough.
    near = 0.1 if name == "checkpointed_reentrant" else 0.02
    assert done.workload.extra["flops"].sum() == pytest.approx(counts.flops, rel=near)
    assert saved_bytes(done.recording) == pytest.approx(counts.saved_bytes, rel=0.05)
    unused = sum(p.elements for p in done.recording.unused)
    own = sum(p.numel() for p in model.parameters())
    assert done.workload.extra["parameters"].sum() + unused == own
    result = stagecut.solve(done.workload, method="greedy")
    assert result.plan is not None
    stagecut.verify(done.workload, result.plan)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_can_trace_says_why_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]) as error:
        profiled(name, training=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "batch_norm", "buffers_that_change", "dropout", "loop_until_small", "lstm",
        "remembers_its_state",
        *(pytest.param(n, marks=pytest.mark.slow)
          for n in ("branch_in_a_chain", "instance_norms", "parametrized", "transformer")),
    ],
)  # fmt: skip
def test_profiling_leaves_a_model_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_times, "BUDGET_S", 0.0)
    torch.manual_seed(0)
    model, args, kwargs = CASES[name]()
    part = next(m for m in model.modules() if m is not model)
    part.eval()  # frozen by its user
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random, inputs = torch.get_rng_state(), [t.clone() for t in args if torch.is_tensor(t)]
    modes = [m.training for m in model.modules()]
    profile(model, args, kwargs, training=True, cache=tmp_path)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(random, torch.get_rng_state())
    assert all((p.grad == 1).all() for p in model.parameters())
    assert all(map(torch.equal, inputs, [t for t in args if torch.is_tensor(t)]))
    assert getattr(model, "last", None) is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Difference(torch.nn.Module):
    """Reads several inputs, in a module that runs as it is if it `decides`."""

    def __init__(self, decides: bool) -> None:
        super().__init__()
        self.inner = CASES["branch"]()[0] if decides else torch.nn.Linear(8, 8)

    def forward(self, a: torch.Tensor, b: torch.Tensor, more: tuple[torch.Tensor, ...] = ()):
        return self.inner(a) - 2 * b + sum(3 * t for t in more)


@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_inputs_that_are_one_tensor_stay_apart(decides: bool, named: bool) -> None:
    """As with `labels=ids`: the graph must hold for labels that are not the ids."""
    model, x = Difference(decides), torch.ones(2, 8)
    args, kwargs = ((), {"a": x, "b": x}) if named else ((x, x, (x, x)), {})
    traced = profile(model, args, kwargs, estimate="h100").traced
    assert traced.how == (PARTS if decides else "torch.export")
    other = [torch.randn(2, 8) for _ in traced.inputs]
    given = (*other[:2], tuple(other[2:]))
    with torch.no_grad():
        found = traced.module(a=other[0], b=other[1]) if named else traced.module(*given)
        (found,) = found if isinstance(found, tuple) else (found,)
        torch.testing.assert_close(found, model(*given))


def test_an_output_may_read_one_of_two_inputs_that_are_one_tensor() -> None:
    """As of models of `transformers` with ``labels=ids``: their logits do not read the labels."""

    class Loss(torch.nn.Linear):
        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = super().forward(ids)
            return {"loss": (logits - labels).square().mean(), "logits": logits}

    x = torch.ones(2, 8)
    found = profile(Loss(8, 8), (), {"ids": x, "labels": x}, training=True, estimate="h100")
    assert found.traced.how == "torch.export"


def test_profiling_again_gives_the_same_numbers_after_an_odd_model() -> None:
    first, *_ = profiled("branch_in_a_chain", True)
    second, *_ = profiled("branch_in_a_chain", True)
    assert first.workload.fingerprint == second.workload.fingerprint


def test_an_invalid_backward_pass_is_one_line(tmp_path: Path) -> None:
    class Spoils(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x).sigmoid()
            return (y.exp() * y.add_(1)).sum()

    with pytest.raises(InputError, match=r"fails when it runs: .*inplace operation") as error:
        profile(Spoils(4, 4), (torch.randn(2, 4),), training=True, cache=tmp_path)
    assert "\n" not in str(error.value)


def test_layers_of_a_graph_traced_on_numbers_are_modules() -> None:
    done, *_ = profiled("branch", False)
    layers = {path for step in done.recording.steps for path in step.modules}
    assert layers == {"", "layer"}


class Settled(dict[str, int]):
    """A configuration that refuses changes, as those of diffusers' models do."""

    def update(self, *_args: object, **_named: object) -> None:
        raise TypeError("no changes")


def test_configurations_that_refuse_changes_are_left_alone_and_others_put_back() -> None:
    class Counting(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen["calls"] += 1
            return super().forward(x)

    model = Counting(2, 2)
    model.settings, model.seen = Settled(width=2), {"calls": 0}
    with unchanged(model):
        model(torch.zeros(1, 2))
    assert model.settings == {"width": 2}
    assert model.seen == {"calls": 0}


class Normed(torch.nn.Module):
    """Batch norm and attention, for which GPUs have kernels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)[None]
        return torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True).sum()


def test_backward_steps_have_the_names_that_they_have_on_cpus() -> None:
    made = profile(Normed(), (torch.randn(8, 4, 16),), training=True, estimate="h100-sxm")
    found = {str(v).rpartition(".")[2] for v in made.workload.ids}
    assert set(ON_CPUS.values()) <= found
    assert set(ON_CPUS) <= set(dir(torch._C._functions))
