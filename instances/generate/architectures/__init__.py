"""Model architectures as networks of operators, and their conversion to workloads."""

from .language import bert_large, gpt2_xl, llama3_8b, mixtral_8x7b, t5_large
from .lowering import Granularity, Via, to_workload
from .network import Network, NetworkOperator, NetworkTensor
from .table import ARCHITECTURES, Architecture
from .vision import resnet50, semantic_fpn, stable_diffusion_unet, unet, vit_l16

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Granularity",
    "Network",
    "NetworkOperator",
    "NetworkTensor",
    "Via",
    "bert_large",
    "gpt2_xl",
    "llama3_8b",
    "mixtral_8x7b",
    "resnet50",
    "semantic_fpn",
    "stable_diffusion_unet",
    "t5_large",
    "to_workload",
    "unet",
    "vit_l16",
]
