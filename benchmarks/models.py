"""Twenty-five models to trace, small and with random weights: factories of (model, inputs).

`FACTORIES` names the library that each one needs besides torch; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Made = tuple[nn.Module, dict[str, Any]]
WIDTH, LAYERS, HEADS, WORDS, LENGTH = 256, 6, 4, 1000, 128


def ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, WORDS, (2, length))


def gpt2() -> Made:
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config), {"input_ids": ids(), "labels": ids()}


def llama() -> Made:
    import transformers as hf

    config = hf.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config), {"input_ids": ids(), "labels": ids()}


def bert() -> Made:
    import transformers as hf

    config = hf.BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
    )  # fmt: skip
    return hf.BertForMaskedLM(config), {"input_ids": ids(), "labels": ids()}


def t5() -> Made:
    import transformers as hf

    config = hf.T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=4, num_heads=HEADS,
        use_cache=False, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config), {"input_ids": ids(), "labels": ids()}


def mixtral() -> Made:
    import transformers as hf

    config = hf.MixtralConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    return hf.MixtralForCausalLM(config), {"input_ids": ids(), "labels": ids()}


def mamba() -> Made:
    import transformers as hf

    config = hf.MambaConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=4, state_size=8, use_cache=False
    )
    return hf.MambaForCausalLM(config), {"input_ids": ids(32), "labels": ids(32)}


def vit() -> Made:
    import transformers as hf

    config = hf.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, image_size=160,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(2, 3, 160, 160), "labels": torch.tensor([0, 1])}
    return hf.ViTForImageClassification(config), inputs


def whisper() -> Made:
    import transformers as hf

    config = hf.WhisperConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH, max_source_positions=200, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 80, 400), "labels": ids(64)}
    return hf.WhisperForConditionalGeneration(config), inputs


class Loss(nn.Module):
    """A classifier and its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)


def images(size: int) -> dict[str, Any]:
    return {"x": torch.randn(2, 3, size, size), "y": torch.tensor([0, 1])}


def _vision(name: str, size: int) -> Made:
    import torchvision

    return Loss(torchvision.models.get_model(name, weights=None, num_classes=10)), images(size)


def resnet50() -> Made:
    return _vision("resnet50", 96)


def efficientnet() -> Made:
    return _vision("efficientnet_b0", 96)


def swin() -> Made:
    return _vision("swin_t", 112)


def densenet() -> Made:
    return _vision("densenet121", 96)


def convnext() -> Made:
    return _vision("convnext_tiny", 96)


class Detector(nn.Module):
    """Faster R-CNN with the sum of its losses."""

    def __init__(self) -> None:
        import torchvision

        super().__init__()
        self.model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=5
        )

    def forward(self, image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        labels = torch.ones(len(boxes), dtype=torch.int64)
        return sum(self.model([image], [{"boxes": boxes, "labels": labels}]).values())


def fasterrcnn() -> Made:
    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [20.0, 30.0, 90.0, 80.0]])
    return Detector(), {"image": torch.rand(3, 160, 160), "boxes": boxes}


def coatnet() -> Made:
    import timm

    return Loss(timm.create_model("coatnet_nano_rw_224", num_classes=10)), images(224)


class Denoiser(nn.Module):
    """A U-Net of diffusers with its loss."""

    def __init__(self) -> None:
        import diffusers

        super().__init__()
        self.model = diffusers.UNet2DModel(
            sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.model(x, time).sample, x)


def unet() -> Made:
    return Denoiser(), {"x": torch.randn(2, 3, 32, 32), "time": torch.tensor([3, 7])}


def stack(layers: int = 12, width: int = 512) -> nn.Sequential:
    return nn.Sequential(
        *(m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())),
        nn.Linear(width, 10),
    )


def rows(width: int = 512) -> dict[str, Any]:
    return {"x": torch.randn(64, width), "y": torch.randint(0, 10, (64,))}


def mlp() -> Made:
    return Loss(stack()), rows()


class Translator(nn.Module):
    """Encoder and decoder LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH, num_layers=3, batch_first=True)
        self.decoder = nn.LSTM(WIDTH, WIDTH, num_layers=3, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(self.embedding(source))
        out, _ = self.decoder(self.embedding(target), state)
        return F.cross_entropy(self.head(out).flatten(0, 1), target.flatten())


def lstm() -> Made:
    return Translator(), {"source": ids(24), "target": ids(24)}


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(self.embedding(x))).flatten(0, 1), x.flatten())


def tied() -> Made:
    return Tied(), {"x": ids()}


class Experts(nn.Module):
    """Every token through four experts, weighed by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(stack(2, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gates = self.gate(x).softmax(-1)
        mixed = sum(gates[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return F.cross_entropy(mixed, y)


def moe() -> Made:
    return Experts(), rows(WIDTH)


class Several(nn.Module):
    """Dictionary in, three branches, one loss."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(stack(3, WIDTH) for _ in range(3))

    def forward(self, batch: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
        outs = [branch(batch[key]) for key, branch in zip("abc", self.branches, strict=True)]
        return sum(F.cross_entropy(out, y) for out in outs)


def multi() -> Made:
    batch = {key: torch.randn(64, WIDTH) for key in "abc"}
    return Several(), {"batch": batch, "y": torch.randint(0, 10, (64,))}


def inplace() -> Made:
    layers = [
        m
        for i in range(6)
        for m in (
            nn.Conv2d(32 if i else 3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
        )
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return Loss(model), images(48)


def frozen() -> Made:
    model = stack(8)
    for parameter in list(model.parameters())[:8]:
        parameter.requires_grad_(False)
    return Loss(model), rows()


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)
        )
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(self.head(x), y)


def checkpointed() -> Made:
    return Checkpointed(), rows()


class Autocast(nn.Module):
    """Blocks in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.model = stack(8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.model(x)
        return F.cross_entropy(out.float(), y)


def autocast() -> Made:
    return Autocast(), rows()


#: Factory → library that it needs besides torch.
FACTORIES: dict[Callable[[], Made], str] = {
    gpt2: "transformers", llama: "transformers", bert: "transformers", t5: "transformers",
    mixtral: "transformers", mamba: "transformers", vit: "transformers", whisper: "transformers",
    resnet50: "torchvision", efficientnet: "torchvision", swin: "torchvision",
    densenet: "torchvision", convnext: "torchvision", fasterrcnn: "torchvision",
    coatnet: "timm", unet: "diffusers",
    mlp: "", lstm: "", tied: "", moe: "", multi: "", inplace: "", frozen: "", checkpointed: "",
    autocast: "",
}  # fmt: skip
