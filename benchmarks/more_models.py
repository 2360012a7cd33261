"""More models, small and with random weights, beside those of `models.py`: models that no exported
graph holds, compiled ones, dictionary outputs, and more of `transformers`, `diffusers` and `peft`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from models import HEADS, LAYERS, WIDTH, WORDS, Loss, Made, ids, llama, rows, stack
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Settles(nn.Module):
    """Repeats its layer until little changes: numbers say how often."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            new = 0.5 * x + 0.1 * torch.tanh(self.layer(x))
            if (new - x).abs().mean() < 0.05:
                return new
            x = new
        return x


def control() -> Made:
    width = 512
    layers = [m for _ in range(4) for m in (nn.Linear(width, width), nn.GELU(), Settles(width))]
    return Loss(nn.Sequential(*layers, nn.Linear(width, 10))), rows(width)


class SwishFunction(torch.autograd.Function):
    """Keeps its input alone, and computes the gate again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return given * gate * (1 + x * (1 - gate))


class Swish(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SwishFunction.apply(x)


def autograd() -> Made:
    layers = [m for _ in range(8) for m in (nn.Linear(512, 512), Swish())]
    return Loss(nn.Sequential(*layers, nn.Linear(512, 10))), rows()


class Routed(nn.Module):
    """Each row goes through one expert alone: numbers say how many through which."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(stack(2, WIDTH)[:-1] for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (at,) = torch.where(chosen == number)
            out = out.index_add(0, at, share[at, None] * expert(x[at]))
        return x + out


def routed() -> Made:
    layers = [m for _ in range(4) for m in (Routed(), nn.LayerNorm(WIDTH))]
    return Loss(nn.Sequential(*layers, nn.Linear(WIDTH, 10))), rows(WIDTH)


def compiled() -> Made:
    return torch.compile(Loss(stack())), rows()


class Dictionary(nn.Module):
    """Loss, logits and hidden states in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = stack(8)[:-1], nn.Linear(512, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        hidden = self.body(x)
        logits = self.head(hidden)
        return {"hidden": [hidden], "loss": F.cross_entropy(logits, y), "logits": logits}


def dictionary() -> Made:
    return Dictionary(), rows()


#: Sizes of decoders of `transformers`.
DECODER: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 2,
    "use_cache": False,
}  # fmt: skip


def words() -> dict[str, Any]:
    return {"input_ids": ids(), "labels": ids()}


def llama_checkpointed() -> Made:
    model, inputs = llama()
    model.gradient_checkpointing_enable()
    return model, inputs


def qwen3() -> Made:
    import transformers as hf

    config = hf.Qwen3Config(**DECODER, head_dim=WIDTH // HEADS, tie_word_embeddings=True)
    return hf.Qwen3ForCausalLM(config), words()


def gemma3() -> Made:
    import transformers as hf

    config = hf.Gemma3TextConfig(**DECODER, head_dim=WIDTH // HEADS, sliding_window=32)
    return hf.Gemma3ForCausalLM(config), words()


def deepseek() -> Made:
    import transformers as hf

    sizes = DECODER | {"num_key_value_heads": HEADS, "num_hidden_layers": 3}
    config = hf.DeepseekV2Config(
        **sizes, moe_intermediate_size=WIDTH, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=64, q_lora_rank=64,
        qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64, n_group=1, topk_group=1,
    )  # fmt: skip
    return hf.DeepseekV2ForCausalLM(config), words()


def gpt_oss() -> Made:
    import transformers as hf

    sizes = DECODER | {"intermediate_size": WIDTH, "num_hidden_layers": 4}
    config = hf.GptOssConfig(
        **sizes, head_dim=WIDTH // HEADS, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=32,
    )  # fmt: skip
    return hf.GptOssForCausalLM(config), words()


def lora() -> Made:
    import peft

    model, inputs = llama()
    config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config), inputs


def dinov2() -> Made:
    import transformers as hf

    config = hf.Dinov2Config(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, image_size=112
    )
    inputs = {"pixel_values": torch.randn(2, 3, 112, 112), "labels": torch.tensor([0, 1])}
    return hf.Dinov2ForImageClassification(config), inputs


def hidden_states() -> Made:
    import transformers as hf

    config = hf.Dinov2Config(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, image_size=112
    )
    inputs = {"pixel_values": torch.randn(2, 3, 112, 112), "output_hidden_states": True}
    return hf.Dinov2Model(config), inputs


def segformer() -> Made:
    import transformers as hf

    config = hf.SegformerConfig(
        hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1], decoder_hidden_size=64, num_labels=5
    )
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 5, (2, 64, 64))
    return hf.SegformerForSemanticSegmentation(config), {"pixel_values": images, "labels": labels}


def clip() -> Made:
    import transformers as hf

    text = {"vocab_size": WORDS, "hidden_size": 128, "intermediate_size": 256, "eos_token_id": 2,
            "num_hidden_layers": 4, "num_attention_heads": HEADS}  # fmt: skip
    vision = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
              "num_attention_heads": HEADS, "image_size": 64, "patch_size": 16}  # fmt: skip
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    inputs = {"input_ids": ids(24), "pixel_values": torch.randn(2, 3, 64, 64), "return_loss": True}
    return hf.CLIPModel(config), inputs


class Sum(nn.Module):
    """The mean of the squares of what a model of `transformers` gives last."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)[0].pow(2).mean()


def sam() -> Made:
    import transformers as hf

    config = hf.SamVisionConfig(
        hidden_size=128, output_channels=32, num_hidden_layers=4, num_attention_heads=HEADS,
        image_size=128, window_size=4, global_attn_indexes=[1, 3], mlp_dim=256,
    )  # fmt: skip
    return Sum(hf.SamVisionModel(config)), {"x": torch.randn(1, 3, 128, 128)}


def distilbert() -> Made:
    import transformers as hf

    config = hf.DistilBertConfig(
        vocab_size=WORDS, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=2 * WIDTH
    )
    inputs = {"input_ids": ids(), "labels": torch.tensor([0, 1])}
    return hf.DistilBertForSequenceClassification(config), inputs


def wav2vec2() -> Made:
    import transformers as hf

    config = hf.Wav2Vec2Config(
        vocab_size=32, hidden_size=128, num_hidden_layers=4, num_attention_heads=HEADS,
        intermediate_size=256, conv_dim=(64, 64, 64), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2),
        num_feat_extract_layers=3, layerdrop=0.0, apply_spec_augment=False,
        num_conv_pos_embedding_groups=4, num_conv_pos_embeddings=16,
    )  # fmt: skip
    labels = torch.randint(1, 30, (2, 6))
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 2000), "labels": labels}


class Conditioned(nn.Module):
    """A U-Net that attends to a text, with its loss."""

    def __init__(self) -> None:
        import diffusers

        super().__init__()
        self.model = diffusers.UNet2DConditionModel(
            sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=32,
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
        )  # fmt: skip

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.model(x, time, text).sample, x)


def conditioned() -> Made:
    x, time, text = torch.randn(2, 4, 16, 16), torch.tensor([3, 7]), torch.randn(2, 8, 32)
    return Conditioned(), {"x": x, "time": time, "text": text}


class Recommender(nn.Module):
    """Sixteen bags of embeddings and their products, as in DLRM."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(500, width) for _ in range(16))
        self.bottom, self.top = nn.Linear(13, width), nn.Linear(width + 17 * 17, 1)

    def forward(self, dense: torch.Tensor, bags: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bottom(dense))
        rows = torch.stack([x, *(bag(bags[k]) for k, bag in enumerate(self.bags))], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)
        out = self.top(torch.cat([x, products], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(out, y)


def dlrm() -> Made:
    bags, y = torch.randint(0, 500, (16, 32, 4)), torch.rand(32)
    return Recommender(), {"dense": torch.randn(32, 13), "bags": bags, "y": y}


class Convolved(nn.Module):
    """Three convolutions over the edges of a graph."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for layer in self.layers:
            x = torch.relu(torch.zeros_like(x).index_add(0, target, layer(x)[source]))
        return F.cross_entropy(self.head(x), y)


def gcn() -> Made:
    edges, y = torch.randint(0, 100, (2, 400)), torch.randint(0, 5, (100,))
    return Convolved(), {"x": torch.randn(100, 64), "edges": edges, "y": y}


class Noisy(nn.Module):
    """A variational autoencoder, which draws random numbers in its middle."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.encoder, self.mean, self.spread = stack(2, width)[:-1], *self._ends(width)
        self.decoder = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width))

    @staticmethod
    def _ends(width: int) -> tuple[nn.Module, nn.Module]:
        return nn.Linear(width, 32), nn.Linear(width, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        out = self.decoder(mean + torch.randn_like(mean) * (spread / 2).exp())
        return F.mse_loss(out, x) + (mean.pow(2) + spread.exp() - spread).mean()


def vae() -> Made:
    return Noisy(), {"x": torch.randn(64, 256)}


class Spectral(nn.Module):
    """Weights that are normalised, and a filter of complex numbers."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.a = parametrizations.weight_norm(nn.Linear(width, width))
        self.b = nn.utils.spectral_norm(nn.Linear(width, width))
        self.filter = nn.Parameter(torch.randn(width // 2 + 1, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        x = torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=x.shape[-1])
        return self.b(x).pow(2).mean()


def spectral() -> Made:
    return Spectral(), {"x": torch.randn(32, 128)}


class Packed(nn.Module):
    """A recurrent network over sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.r = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True)
        out, _ = pad_packed_sequence(self.r(packed)[0], batch_first=True)
        return self.head(out).pow(2).mean()


def packed() -> Made:
    return Packed(), {"x": ids(24), "lengths": torch.tensor([24, 17])}


class Condition(nn.Module):
    """Control flow of torch's own between a stem and a head."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(width, width), nn.Linear(width, 10)
        self.yes, self.no = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.cond(x.sum() > 0, lambda v: self.yes(v), lambda v: self.no(v), (x,))
        return self.head(x).pow(2).mean()


def cond() -> Made:
    return Condition(), {"x": torch.randn(8, 256)}


class Outermost(nn.Module):
    """Numbers say which way the outermost module goes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.yes, self.no = stack(4), nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return (self.yes(x) if x.sum() > 0 else self.no(x)).pow(2).mean()


def outermost() -> Made:
    return Outermost(), {"x": torch.randn(32, 512)}


def routed_outermost() -> Made:
    return Routed(), {"x": torch.randn(64, WIDTH)}


#: Factory → library that it needs besides torch.
MORE: dict[Callable[[], Made], str] = {
    control: "", autograd: "", routed: "", compiled: "", dictionary: "",
    llama_checkpointed: "transformers", qwen3: "transformers", gemma3: "transformers",
    deepseek: "transformers", gpt_oss: "transformers", lora: "peft", dinov2: "transformers",
    hidden_states: "transformers", segformer: "transformers", clip: "transformers",
    sam: "transformers", distilbert: "transformers", wav2vec2: "transformers",
    conditioned: "diffusers", dlrm: "", gcn: "", vae: "", spectral: "", packed: "", cond: "",
    outermost: "", routed_outermost: "",
}  # fmt: skip
