"""Models that importers stumble over; each makes itself, its inputs by position and by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
CASES: dict[str, Callable[[], Made]] = {}


def case(make: Callable[[], Made]) -> Callable[[], Made]:
    CASES[make.__name__] = make
    return make


class Does(nn.Module):
    """A model around a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 8)))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, *, scale: float = 1.0, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self.a(x) * scale
        return y if bias is None else y + bias


@case
def keyword_inputs() -> Made:
    return Named(), (), {"x": x(), "scale": 2.0, "bias": x(8)}


@case
def none_input() -> Made:
    return Named(), (x(),), {"bias": None}


@case
def default_arguments() -> Made:
    return Named(), (x(),), {}


@case
def integer_input() -> Made:
    class Power(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, times: int, how: str = "tanh") -> torch.Tensor:
            for _ in range(times):
                x = getattr(torch, how)(self.a(x))
            return x

    return Power(), (x(), 3), {"how": "relu"}


@case
def nested_inputs() -> Made:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, pair: Any, more: dict[str, Any]) -> torch.Tensor:
            (first, second), third = pair
            return self.a(first) * second + third + more["z"][0]

    return Nested(), (((x(), x()), x()), {"z": [x()]}), {}


@case
def dictionary_output() -> Made:
    return (
        Does(lambda m, v: {"y": m.a(v), "v": [v, (m.a(v).sum(),)]}, a=nn.Linear(8, 8)),
        (x(),),
        {},
    )


@dataclass
class Out:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    note: str = "none"


@case
def dataclass_output() -> Made:
    return Does(lambda m, v: Out(m.a(v), (v,)), a=nn.Linear(8, 8)), (x(),), {}


class Pair(NamedTuple):
    mean: torch.Tensor
    spread: torch.Tensor


@case
def named_tuple_output() -> Made:
    return Does(lambda m, v: Pair(m.a(v), m.a(v).exp()), a=nn.Linear(8, 8)), (x(),), {}


@dataclass
class In:
    words: torch.Tensor
    weight: float


@case
def dataclass_input() -> Made:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, given: In) -> torch.Tensor:
            return self.a(given.words) * given.weight

    return Reads(), (In(x(), 2.0),), {}


@case
def scalar_output() -> Made:
    return Does(lambda m, v: m.a(v).pow(2).mean(), a=nn.Linear(8, 8)), (x(),), {}


@case
def loss_inside() -> Made:
    def run(m: Any, v: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = m.b(torch.relu(m.a(v)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    parts = {"a": nn.Linear(8, 16), "b": nn.Linear(16, 5)}
    return Does(run, **parts), (x(), torch.tensor([0, 1, 2, 3])), {}


@case
def dropout() -> Made:
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)), (x(),), {}


@case
def batch_norm() -> Made:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    return nn.Sequential(*layers), (x(2, 3, 9, 9),), {}


@case
def instance_norms() -> Made:
    layers = (
        nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.GroupNorm(2, 8), nn.LocalResponseNorm(2), nn.PReLU(), nn.RMSNorm(7),
    )  # fmt: skip
    return nn.Sequential(*layers), (x(2, 3, 9, 9),), {}


@case
def in_place_and_views() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        y = m.a(v)
        z = y.view(4, 2, 4)
        z[:, 0].mul_(2)
        z[:, 1] = 1.0
        y = y.t().contiguous().t().add_(1).relu_()
        left, right = y.chunk(2, 1)
        return m.b(torch.cat([right, left], 1).unsqueeze(0).expand(3, 4, 8).flip(0))

    return Does(run, a=nn.Linear(8, 8), b=nn.Linear(8, 3)), (x(),), {}


@case
def tied_weights() -> Made:
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)
    b.weight = a.weight
    return nn.Sequential(a, nn.ReLU(), b), (x(),), {}


@case
def module_called_twice() -> Made:
    return Does(lambda m, v: m.a(torch.relu(m.a(v))), a=nn.Linear(8, 8)), (x(),), {}


@case
def buffers_that_change() -> Made:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("table", torch.randn(4, 8), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x) + self.table
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return y - self.mean

    return Counts(), (x(),), {}


@case
def plain_tensor_attribute() -> Made:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.shift = torch.randn(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x + self.shift) + torch.ones(8)

    return Holds(), (x(),), {}


@case
def noise() -> Made:
    return Does(lambda m, v: m.a(v + torch.randn_like(v)), a=nn.Linear(8, 8)), (x(),), {}


@case
def complex_numbers() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(m.a(v).view(4, 4, 2)) * m.turn
        y = torch.view_as_real(turned).flatten(1)
        return torch.fft.irfft(torch.fft.rfft(y) * m.filter, n=8)

    turn = torch.polar(torch.ones(4), torch.arange(4.0))
    filter_ = nn.Parameter(torch.randn(5, dtype=torch.complex64))
    model = Does(run, a=nn.Linear(8, 8), filter=filter_)
    model.register_buffer("turn", turn)
    return model, (x(),), {}


@case
def bfloat16() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return model.to(torch.bfloat16), (x().to(torch.bfloat16),), {}


@case
def autocast() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return m.b(torch.relu(m.a(v))).float()

    return Does(run, a=nn.Linear(8, 16), b=nn.Linear(16, 4)), (x(),), {}


@case
def double() -> Made:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double(), (x().double(),), {}


@case
def lstm() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        out, (h, _) = m.rnn(v)
        return m.head(out[:, -1] + h[-1].repeat(1, 2))

    rnn = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
    return Does(run, rnn=rnn, head=nn.Linear(12, 3)), (x(3, 5, 8),), {}


@case
def gru() -> Made:
    return Does(lambda m, v, h: m.rnn(v, h)[0], rnn=nn.GRU(8, 6)), (x(5, 3, 8), x(1, 3, 6)), {}


@case
def cell_in_a_loop() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        h = v.new_zeros(3, 6)
        for t in range(v.shape[0]):
            h = m.cell(v[t], h)
        return h

    return Does(run, cell=nn.GRUCell(8, 6)), (x(5, 3, 8),), {}


@case
def embedding_bags() -> Made:
    parts = {"bag": nn.EmbeddingBag(20, 8, mode="mean"), "head": nn.Linear(8, 2)}
    inputs = torch.randint(0, 20, (10,)), torch.tensor([0, 4, 7])
    return Does(lambda m, i, o: m.head(m.bag(i, o)), **parts), inputs, {}


@case
def embedding_with_padding() -> Made:
    layers = nn.Embedding(20, 8, padding_idx=0, max_norm=None), nn.Linear(8, 2)
    return nn.Sequential(*layers), (torch.randint(0, 20, (3, 4)),), {}


@case
def multihead_attention() -> Made:
    parts = {"a": nn.MultiheadAttention(8, 2, batch_first=True)}
    return Does(lambda m, v: m.a(v, v, v, need_weights=False)[0], **parts), (x(2, 5, 8),), {}


@case
def attention_with_weights() -> Made:
    parts = {"a": nn.MultiheadAttention(8, 2, dropout=0.1)}
    return Does(lambda m, v, w: m.a(v, w, w), **parts), (x(5, 2, 8), x(6, 2, 8)), {}


@case
def transformer_encoder() -> Made:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2), (x(2, 5, 16),), {}


@case
def transformer() -> Made:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return model, (x(2, 5, 16), x(2, 4, 16)), {"tgt_mask": mask}


@case
def scaled_dot_product() -> Made:
    def run(m: Any, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, w = m.a(v).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return m.b(F.scaled_dot_product_attention(q, k, w, mask).transpose(1, 2).flatten(2))

    parts = {"a": nn.Linear(16, 48), "b": nn.Linear(16, 16)}
    return Does(run, **parts), (x(2, 6, 16), torch.ones(6, 6, dtype=torch.bool).tril()), {}


class Checkpointed(nn.Module):
    """Recomputes its middle in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.relu(self.b(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.d(checkpoint(self.middle, x, use_reentrant=self.reentrant))


@case
def checkpointed() -> Made:
    return Checkpointed(False), (x(),), {}


@case
def checkpointed_reentrant() -> Made:
    return Checkpointed(True), (x(),), {}


@case
def checkpointed_block() -> Made:
    return nn.Sequential(nn.Linear(8, 8), Checkpointed(False), nn.Linear(8, 2)), (x(),), {}


class Sign(torch.autograd.Function):
    """Straight through: its gradient is not its own."""

    @staticmethod
    def forward(ctx: Any, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(v)
        return v.sign()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (v,) = ctx.saved_tensors
        return g * (v.abs() < 1)


@case
def custom_autograd() -> Made:
    class Binary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(Sign.apply(self.a(x)))

    return Binary(), (x(),), {}


@case
def frozen_parameters() -> Made:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model, (x(),), {}


@case
def all_frozen() -> Made:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False), (x(),), {}


@case
def no_parameters() -> Made:
    return nn.Sequential(nn.ReLU(), nn.Softmax(-1)), (x(),), {}


@case
def input_with_gradient() -> Made:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (x().requires_grad_(),), {}


@case
def unused_parameters() -> Made:
    return Does(lambda m, v: m.a(v), a=nn.Linear(8, 8), b=nn.Linear(8, 3)), (x(),), {}


@case
def detached_middle() -> Made:
    parts = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}
    return Does(lambda m, v: m.b(m.a(v).detach()), **parts), (x(),), {}


@case
def no_grad_inside() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = m.a(v)
        return m.b(y) + v

    return Does(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), (x(),), {}


@case
def parametrized() -> Made:
    a = parametrizations.weight_norm(nn.Linear(8, 8))
    b = parametrizations.spectral_norm(nn.Linear(8, 4))
    return nn.Sequential(a, nn.ReLU(), b), (x(),), {}


@case
def parameter_list() -> Made:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterList(nn.Parameter(torch.randn(8, 8)) for _ in range(3))
            self.d = nn.ParameterDict({"b": nn.Parameter(torch.zeros(8))})
            self.m = nn.ModuleDict({"n": nn.LayerNorm(8)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for w in self.w:
                x = torch.einsum("bi,ij->bj", x, w) + self.d["b"]
            return self.m["n"](x)

    return Listed(), (x(),), {}


@case
def lazy() -> Made:
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)), (x(),), {}


@case
def convolutions() -> Made:
    layers = (
        nn.Conv2d(4, 8, 3, groups=2), nn.ConvTranspose2d(8, 4, 3, stride=2), nn.PixelShuffle(2),
        nn.AdaptiveAvgPool2d(4), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(1, 2, 3),
        nn.MaxPool2d(2),
    )  # fmt: skip
    return nn.Sequential(*layers), (x(2, 4, 8, 8),), {}


@case
def convolutions_in_one_and_three_dimensions() -> Made:
    parts = {"a": nn.Conv1d(3, 4, 3, padding=1), "b": nn.Conv3d(1, 2, 3, padding=1)}
    return Does(lambda m, v: m.b(m.a(v).view(2, 1, 4, 2, 4)), **parts), (x(2, 3, 8),), {}


@case
def sparse_gradients() -> Made:
    layers = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 2)
    return nn.Sequential(*layers), (torch.randint(0, 20, (3, 4)),), {}


@case
def sorting_and_scattering() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        scores, where = m.gate(v).topk(2, -1)
        weights = torch.zeros(4, 3).scatter(1, where, scores.softmax(-1))
        ranked, _ = v.sort(-1)
        return torch.stack([e(ranked) for e in m.experts], 1).mul(weights[..., None]).sum(1)

    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    return Does(run, gate=nn.Linear(8, 3), experts=experts), (x(),), {}


@case
def functional_transforms() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        return torch.vmap(m.a)(v.view(2, 2, 8)).flatten(0, 1)

    return Does(run, a=nn.Linear(8, 8)), (x(),), {}


@case
def functional_transforms_inside() -> Made:
    inner = functional_transforms()[0]
    return nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 8)), (x(),), {}


@case
def double_backward() -> Made:
    """A physics-informed loss: the model differentiates itself."""

    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        v = v.requires_grad_()
        y = m.b(torch.tanh(m.a(v)))
        (g,) = torch.autograd.grad(y.sum(), v, create_graph=True)
        return (g**2).mean() + y.mean()

    return Does(run, a=nn.Linear(8, 8), b=nn.Linear(8, 1)), (x(),), {}


@case
def user_hooks() -> Made:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].register_forward_hook(lambda *seen: seen[-1] * 2)
    model[1].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    return model, (x(),), {}


@case
def prints() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        print("shape", v.shape)
        return m.a(v)

    return Does(run, a=nn.Linear(8, 8)), (x(),), {}


@case
def remembers_its_state() -> Made:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            if self.last is not None:
                y = y + self.last
            self.last = y.detach()
            return y

    return Remembers(), (x(),), {}


@case
def input_returned() -> Made:
    return Does(lambda m, v, w: (m.a(v), w), a=nn.Linear(8, 8)), (x(), x()), {}


@case
def one_number_in() -> Made:
    return Does(lambda m, v: m.a(v.expand(4, 8)), a=nn.Linear(8, 8)), (torch.tensor(2.0),), {}


@case
def scripted() -> Made:
    return torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), (x(),), {}


@case
def compiled() -> Made:
    return torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="eager"), (x(),), {}


@case
def batch_of_unknown_words() -> Made:
    """A mask picks rows: how many is known only from numbers."""
    parts = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 2)}
    return Does(lambda m, v: m.b(torch.relu(m.a(v[v[:, 0] > -9]))), **parts), (x(),), {}


# --- what torch.export rejects -----------------------------------------------------------------


class Branch(nn.Module):
    """Numbers decide which way it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


@case
def branch() -> Made:
    return Branch(), (x(),), {}


@case
def branch_in_a_chain() -> Made:
    layers = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), Branch(), nn.Linear(8, 2)
    return nn.Sequential(*layers), (x(),), {}


@case
def branch_in_a_chain_by_hand() -> Made:
    def run(m: Any, v: torch.Tensor) -> torch.Tensor:
        for layer in m.layers:
            v = layer(v)
        return m.head(v)

    layers = nn.ModuleList([nn.Linear(8, 8), Branch(), Branch()])
    return Does(run, layers=layers, head=nn.Linear(8, 2)), (), {"v": x()}


@case
def branch_beside_a_residual() -> Made:
    """No chain, but torch.fx can follow the module that calls `Branch`, if that is left whole."""

    class Knot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = Branch()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) + self.a(x)

    return Knot(), (x(),), {}


@case
def loop_over_numbers() -> Made:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            for _ in range(int(times)):
                x = torch.relu(self.a(x))
            return x

    return Loops(), (x(), torch.tensor(3)), {}


@case
def loop_until_small() -> Made:
    class Until(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            while y.norm() > 1:
                y = y / 2
            return y

    return nn.Sequential(nn.Linear(8, 8), Until(), nn.Linear(8, 2)), (x(),), {}


@case
def experts_by_numbers() -> Made:
    """Each expert gets the rows that chose it."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = self.gate(x).argmax(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                (rows,) = torch.where(chosen == number)
                if len(rows):
                    out = out.index_add(0, rows, expert(x[rows]))
            return out

    return nn.Sequential(nn.Linear(8, 8), Experts(), nn.Linear(8, 2)), (x(16, 8),), {}


@case
def numpy_inside() -> Made:
    class Leaves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            return y * float(y.detach().numpy().std())

    return nn.Sequential(nn.Linear(8, 8), Leaves()), (x(),), {}
