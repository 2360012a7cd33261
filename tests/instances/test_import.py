"""PyTorch models as workloads: what is recorded is what torch does."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

import stagecut
from stagecut import InputError, Workload
from stagecut.cli import run_command
from stagecut.instances import tied_as

torch = pytest.importorskip("torch", reason="the extra `runtime` is not installed")

from torch import nn  # noqa: E402
from torch_counts import counted_by_torch, saved_bytes  # noqa: E402

from stagecut.instances.operator_graph import operator_graph  # noqa: E402
from stagecut.instances.pytorch import operator_times  # noqa: E402
from stagecut.instances.pytorch.factory import make  # noqa: E402
from stagecut.instances.pytorch.profile import Profile, profile  # noqa: E402
from stagecut.instances.pytorch.record import KernelRecorder  # noqa: E402


class Block(nn.Module):
    """A transformer block, small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Gpt(nn.Module):
    """A language model whose embedding is tied to its head."""

    def __init__(self, width: int = 16, vocabulary: int = 40, blocks: int = 3) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(32, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    """Convolutions, batch norm, in-place functions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.conv(x)
        y += x
        return self.head(torch.relu(y).mean((2, 3)))


class Branch(nn.Module):
    """What no tracer can follow: numbers decide which way it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def gpt() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Gpt(), torch.randint(0, 40, (2, 12))


def residual() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Residual(), torch.randn(2, 3, 12, 12)


MODELS = {"gpt": gpt, "residual": residual}


def check(done: Profile, model: nn.Module) -> None:
    """What holds for every imported workload."""
    workload = done.workload
    assert workload.extra["parameters"].sum() == sum(p.numel() for p in model.parameters())
    names = [name for parts in done.fx_nodes.values() for name in parts]
    names += done.anywhere
    assert len(names) == len(set(names))
    traced = {n.name for n in done.traced.module.graph.nodes if n.op.startswith("call")}
    assert traced <= set(names)
    cluster = workload.cluster
    assert cluster is not None
    for split in ("contiguous", "noncontiguous"):
        problem = stagecut.Throughput(split=split)
        result = stagecut.solve(workload, cluster, problem, method="greedy")
        assert result.plan is not None
        stagecut.verify(workload, result.plan)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("depth", [None, 1])
def test_what_is_imported_is_what_torch_does(
    name: str, training: bool, depth: int | None, tmp_path: Path
) -> None:
    model, x = MODELS[name]()
    done = profile(
        model, (x,), training=training, depth=depth, estimate="h100", cache=tmp_path, tied="colour"
    )  # each weight once, as torch counts
    check(done, model)
    counts = counted_by_torch(model, (x,), training=training)
    assert done.workload.extra["flops"].sum() == counts.flops
    assert saved_bytes(done.recording) == pytest.approx(counts.saved_bytes, rel=0.05)
    assert done.workload.backward.any() == training
    if training:
        assert done.workload.extra["activation_bytes"].sum() == saved_bytes(done.recording)
        bytes_ = sum(p.numel() * p.element_size() for p in model.parameters())
        assert done.workload.extra["gradient_bytes"].sum() == bytes_
        assert done.workload.extra["optimizer_bytes"].sum() == 2 * bytes_  # Adam, 32 bits


def together(workload: Workload, *ids: str) -> bool:
    colours = {int(workload.colours[workload.index[i]]) for i in ids}
    return len(colours) == 1 and -1 not in colours


def test_operators_of_a_gpt() -> None:
    model, ids = gpt()
    done = profile(model, (ids,), estimate="h100", tied="colour")
    workload = done.workload
    assert together(workload, "embedding", "linear_12")  # the tied weight
    assert "dropout" not in workload.ids  # does nothing in evaluation
    assert "arange" in done.anywhere
    assert any(name.startswith("view") for name in done.fx_nodes["linear"])
    assert workload.output_bytes is not None
    assert workload.output_bytes[workload.index["linear"]] == 2 * 12 * 48 * 4
    copies = profile(model, (ids,), estimate="h100").workload
    assert copies.fingerprint == tied_as(workload, "copies").fingerprint
    assert not copies.colour_labels
    tied = 40 * 16 * 4
    weights = copies.extra["weight_bytes"].sum() - workload.extra["weight_bytes"].sum()
    assert weights == tied


def test_backward_nodes_share_a_device_with_their_forward_nodes() -> None:
    model, ids = gpt()
    workload = profile(model, (ids,), estimate="h100", training=True).workload
    backward = [node for node, back in zip(workload.ids, workload.backward, strict=True) if back]
    assert "linear_12.MmBackward0" in backward
    for node in backward:
        assert workload.colours[workload.index[node]] >= 0
    assert together(workload, "gelu", "gelu.GeluBackward0")
    forward_to_backward = {(workload.ids[u], workload.ids[v]) for u, v in workload.edges.tolist()}
    assert ("gelu", "gelu.GeluBackward0") in forward_to_backward
    gradients = workload.edges[workload.backward[workload.edges[:, 0]]]
    assert workload.backward[gradients[:, 1]].all()


def test_a_layer_sends_one_gradient_for_a_residual_stream() -> None:
    model, ids = gpt()
    workload = profile(model, (ids,), estimate="h100", training=True, depth=1).workload
    stream = 2 * 12 * 16 * 4
    assert workload.output_bytes is not None
    for node in ("blocks.1", "blocks.1.backward", "blocks.2.backward"):
        assert workload.output_bytes[workload.index[node]] == stream
    assert {"blocks.0", "blocks.2.backward"} <= set(workload.ids)


def test_in_place_operators_stay_with_what_they_change() -> None:
    model, x = residual()
    workload = profile(model, (x,), estimate="h100", training=True).workload
    assert together(workload, "batch_norm", "relu_")
    assert together(workload, "conv2d_1", "add__1")
    counter = profile(model, (x,), estimate="h100", training=True)
    assert counter.fx_nodes["batch_norm"][0] == "add_"  # the module's counter of batches


def test_tracing_again_gives_the_same_workload() -> None:
    model, ids = gpt()
    first, second = (profile(model, (ids,), estimate="h100", training=True) for _ in range(2))
    assert first.workload.fingerprint == second.workload.fingerprint
    assert first.fx_nodes == second.fx_nodes


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_added_up_as_torch_does_for_all_microbatches_but_the_first(
    tied: bool,
) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    if tied:
        second.weight = first.weight
    model, x = nn.Sequential(first, nn.ReLU(), second), torch.zeros(3, 4)
    done = profile(model, (x,), training=True, estimate="h100")
    added = [k.signature for step in done.recording.backward for k in step.sums]
    assert all(parameter.grad is None for parameter in model.parameters())
    seen: list[list[str]] = []
    for _ in range(2):
        with KernelRecorder() as watch:
            model(x).sum().backward()
        seen.append([kernel.signature for kernel in watch.kernels])
    for signature in seen[0]:
        seen[1].remove(signature)
    assert sorted(added) == sorted(seen[1])
    assert len(added) == len(list(model.parameters()))
    operators = operator_graph(done.recording, training=True).operators
    kernels = [kernel.signature for operator in operators for kernel in operator.kernels]
    assert all(kernels.count(signature) == added.count(signature) for signature in added)


def test_profiles_and_what_is_cut_for_a_run_do_not_print_their_weights() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    done = profile(model, (torch.zeros(3, 64),), estimate="h100")
    plan = stagecut.solve(done.workload, problem=stagecut.Throughput(split="contiguous")).plan
    assert plan is not None
    ready = stagecut.split_model(plan, model, (torch.zeros(3, 64),), workload=done.workload)
    assert len(repr(done)) < 300
    assert "tensor(" not in repr(ready)
    assert "out_features" not in repr(ready)


def checks(done: Profile) -> list[str]:
    """Return what is said of parts and whole."""
    return [note for note in done.notes if note.startswith(("forward:", "backward:"))]


def warned(done: Profile) -> list[str]:
    """Return the warnings, which a busy machine may cause."""
    return [note for note in done.notes if note.startswith("warning:")]


def test_measured_times_are_cached_and_add_up_to_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_times, "BUDGET_S", 0.0)
    model, x = residual()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    done = profile(model, (x,), training=True, cache=tmp_path)
    assert (done.workload.extra["measured"] == 1).all()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(checks(done)) == 2
    assert "parts" in done.workload.provenance["backward_check"]
    total = float(done.workload.times["accelerator"].sum())
    said = [note.split("whole ")[1].split(" ms")[0] for note in checks(done)]
    assert total == pytest.approx(sum(map(float, said)), rel=1e-3)
    (file,) = tmp_path.iterdir()
    assert operator_times.machine_name("cpu") in done.workload.provenance["device"]
    stamp = file.stat().st_mtime_ns
    again = profile(model, (x,), training=True, cache=tmp_path)
    assert file.stat().st_mtime_ns == stamp
    assert str(file) in again.notes[0]
    assert "--fresh" in again.notes[0]
    assert set(again.workload.times) == {"accelerator", "cpu"}
    fresh = profile(model, (x,), training=True, cache=tmp_path, fresh=True)
    assert len(checks(fresh)) == len(fresh.notes) - len(warned(fresh))
    assert file.stat().st_mtime_ns > stamp
    monkeypatch.setattr(operator_times, "MOST_DAYS", 0.0)
    old = profile(model, (x,), training=True, cache=tmp_path)
    assert len(checks(old)) == len(old.notes) - len(warned(old))  # all are too old to be used


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.0, None), (10.0, "10 times as long as its parts"), (0.1, "0.1 times as long as its parts")],
)
@pytest.mark.parametrize(
    ("again", "threads", "reason"),
    [
        (False, 1, "more than kernels|faster kernels"),
        (False, 2, "with 2 threads .* --threads 1"),
        (True, 1, "measured before, .*profile --fresh"),
    ],
    ids=["one thread", "two threads", "from the cache"],
)
def test_a_whole_that_its_parts_do_not_explain_is_a_warning_with_the_likely_reason(
    ratio: float,
    said: str | None,
    again: bool,
    threads: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts are a second for each kernel, and the whole `ratio` times their sum."""

    def kernels(
        _: object, __: object, cache: operator_times.Cache, wanted: set[str], **___: object
    ):
        cache.timings |= dict.fromkeys(wanted, operator_times.Timing(1.0, 0.0, time.time()))
        cache.save()
        return cache.timings

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    nothing = operator_times.Timing(0.0, 0.0)
    whole = (operator_times.Timing(2 * ratio, 0.0), nothing)
    monkeypatch.setattr(operator_times, "measure_kernels", kernels)
    monkeypatch.setattr(operator_times, "measure_whole", lambda *_: whole)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(1 + again):
            notes = profile(model, (torch.zeros(3, 4),), cache=tmp_path).notes
    finally:
        torch.set_num_threads(before)
    warnings = [note for note in notes if note.startswith("warning: ")]
    assert len(warnings) == (said is not None)
    for line in warnings:
        assert said is not None
        assert said in line
        assert re.search(reason, line)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN")
@pytest.mark.parametrize("training", [False, True])
def test_a_fused_lstm_counts_the_products_of_its_gates(training: bool) -> None:
    rnn, x = nn.LSTM(8, 6, num_layers=2), torch.randn(5, 3, 8)
    done = profile(rnn, (x,), training=training, estimate="h100")
    once = 2 * 5 * 3 * sum(w.numel() for w in rnn.parameters() if w.dim() == 2)
    assert done.workload.extra["flops"].sum() == (3 if training else 1) * once


def test_models_on_meta_can_be_estimated_only() -> None:
    with torch.device("meta"):
        model, x = Gpt(width=64, blocks=2), torch.zeros(1, 8, dtype=torch.int64)
    real = profile(
        Gpt(width=64, blocks=2), (torch.zeros(1, 8, dtype=torch.int64),), estimate="a100"
    )
    meta = profile(model, (x,), estimate="a100")
    assert meta.workload.extra["flops"].sum() == real.workload.extra["flops"].sum()
    with pytest.raises(InputError, match="meta"):
        profile(model, (x,))


def test_a_module_that_cannot_be_exported_runs_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), Branch()), nn.Linear(8, 2))
    done = profile(model, (torch.randn(4, 8),), estimate="h100", training=True)
    assert done.traced.how == "torch.export in parts"
    assert done.notes[0].startswith("these run as they are, uncut")
    assert "1.1: its code depends on numbers (test_import.py" in done.notes[0]
    assert done.workload.ids[:4] == ("linear", "relu", "_1_2", "linear_1")
    assert done.fx_nodes["_1_2"][0] == "_1_2"
    assert done.workload.extra["flops"].sum() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_attention_may_return_its_weights() -> None:
    """For inference torch has one kernel that makes both outputs from all weights."""

    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made, weights = self.attention(x, x, x)
            return made, weights

    done = profile(Weighed(), (torch.randn(3, 5, 16),), estimate="h100")
    assert done.traced.how == "torch.export"


def test_lazy_parameters_are_made_without_another_trace() -> None:
    model, x = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d()), torch.randn(4, 5)
    done = profile(model, (x,), estimate="h100", training=True)
    assert done.workload.extra["parameters"].sum() == 8 * 5 + 8 + 2 * 8
    assert model.training
    assert not model[1].num_batches_tracked
    with pytest.raises(InputError, match=r"it fails on its inputs: .*in module 1"):
        profile(nn.Sequential(nn.LazyLinear(8), nn.Linear(5, 2)), (x,), estimate="h100")


def test_a_model_that_fails_on_its_inputs_says_where() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))
    with pytest.raises(InputError, match=r"fails on its inputs: .*in module 1, linear.py") as error:
        profile(model, (torch.randn(4, 8),), estimate="h100")
    assert "\n" not in str(error.value)


USER_FILE = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def build(batch=2):
    return Net(), torch.zeros(batch, 4)

def fixed():
    return Net(), {"input": torch.zeros(2, 4)}

def bare():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

def broken():
    raise KeyError("weights")

model = Net()
number = 7
"""


@pytest.fixture
def user_file(tmp_path: Path) -> str:
    (tmp_path / "my_model.py").write_text(USER_FILE)
    return str(tmp_path / "my_model.py")


@pytest.mark.parametrize("name", ["Net", "build", "model"])
def test_factories(user_file: str, name: str) -> None:
    made = make(f"{user_file}:{name}", batch=5, dtype="bfloat16")
    assert made.args[0].shape == (5, 4)
    assert made.args[0].dtype == torch.bfloat16
    assert next(made.model.parameters()).dtype == torch.bfloat16


def test_made_up_inputs(user_file: str) -> None:
    assert make(f"{user_file}:bare", batch=2, shape="3x8x8").args[0].shape == (2, 3, 8, 8)
    assert list(make(f"{user_file}:fixed").kwargs) == ["input"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nope", {}, "it has no 'nope'; it has Net, build, fixed, bare, broken, model"),
        ("bare", {}, "--input 3x224x224"),
        ("bare", {"shape": "3,4"}, "is no shape"),
        ("broken", {}, "KeyError: 'weights'"),
        ("number", {}, "no function, class or model"),
        ("fixed", {"batch": 3}, "--batch"),
        ("fixed", {"shape": "4"}, "--input"),
        ("build", {"dtype": "float99"}, "--dtype"),
    ],
)
def test_wrong_factories(
    user_file: str, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as error:
        make(f"{user_file}:{name}", **options)
    assert message in str(error.value)


@pytest.mark.parametrize("reference", ["nothing.py:make", "no_such_module_9:make", "plain"])
def test_wrong_references(reference: str) -> None:
    with pytest.raises(InputError, match=reference.split(":")[0]):
        make(reference)


def test_from_a_file_to_a_plan(
    user_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def stagecut_(*words: str) -> str:
        assert run_command(words) == 0
        return capsys.readouterr().out

    out = stagecut_("profile", f"{user_file}:build", "--batch", "4", "--train", "-o", "w.json")
    assert "58 parameters" in out
    workload = stagecut.load(tmp_path / "w.json")
    assert workload.provenance["cost_model"] == "measured"
    assert np.isfinite(workload.times["accelerator"]).all()
    stagecut_("solve", "w.json", "--method", "greedy", "-o", "plan.json")
    assert "verified" in stagecut_("verify", "w.json", "plan.json")


def test_operators_that_only_write_read_nothing_of_what_they_overwrite() -> None:
    x, y = torch.zeros(8), torch.zeros(8, dtype=torch.float64)  # 32 and 64 bytes
    with KernelRecorder() as watch:
        for run in (x.zero_, lambda: x.fill_(1.0), lambda: x.copy_(y), lambda: y.new_zeros(2),
                    lambda: torch.full_like(x, 3.0), lambda: x.add_(1.0)):  # fmt: skip
            run()
    kernels, _, _ = watch.take()
    assert [kernel.moved_bytes for kernel in kernels] == [32, 32, 32 + 64, 16, 32, 64]
