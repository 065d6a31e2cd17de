"""The paper's transformers, and model files that describe themselves.

A backbone is embedding -> blocks -> readout, and a block is an attention half and an MLP half, so that the path of
DIRECTOR, which is cut between the halves, can be read off the parts.
"""

import importlib
import json
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from director.attention import Draw, KernelEigenpairAttention, Penalties, SoftmaxAttention, check_heads
from director.files import InputError, replacing
from director.noise import Noise

# What a model file may hold: kind -> (module, class). A class carries its `kind`, its `settings` (JSON-able) and
# `from_settings(settings)`. Named rather than imported, as these are built on this module.
KINDS = {
    "image_transformer": ("director.backbones", "ImageTransformer"),
    "text_transformer": ("director.text", "TextTransformer"),
    "director": ("director.process", "Director"),
}


class ImageEmbedding(nn.Module):
    """Images [B, C, H, W] -> tokens [B, N, d]: square patches flattened by (row, column, channel), plus position."""

    def __init__(self, image_size: int, channels: int, patch: int, width: int) -> None:
        super().__init__()
        if min(image_size, channels, patch) < 1 or image_size % patch:
            raise InputError(
                f"patches of {patch} x {patch} pixels do not tile an image of {image_size} x {image_size} pixels "
                f"and {channels} channels: choose a patch that divides the image size"
            )
        self.shape = (channels, image_size, image_size)
        self.patch = patch
        self.tokens = (image_size // patch) ** 2
        self.linear = nn.Linear(patch * patch * channels, width)
        self.position = nn.Parameter(torch.randn(self.tokens, width))

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        """Tokens and their mask: None, all tokens are real."""
        if images.shape[1:] != self.shape:
            raise InputError(f"images of shape {tuple(images.shape[1:])} were given to a model of {self.shape} images")
        patches = images.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))  # [B, C, rows, p, columns, p]
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # [B, N, p*p*C]
        return self.linear(patches) + self.position, None


class AttentionHalf(nn.Module):
    """First half of a pre-norm block, h -> y = h + Attn(LN(h)): where the path of DIRECTOR takes a step."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor | None = None, noise: Draw | None = None) -> tuple[Tensor, Penalties]:
        """y [B, N, d], and the attention's penalties."""
        output, penalties = self.attention(self.norm(x), mask, noise)
        return x + output, penalties

    def moments(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given h, both [B, N, d]."""
        mean, variance = self.attention.moments(self.norm(x), mask)
        return x + mean, variance


class MlpHalf(nn.Module):
    """Second half of a pre-norm block, y -> h = y + MLP(LN(y))."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(  # the paper's: the second linear, too, is followed by GELU
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, width),
            nn.GELU(),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Block(nn.Module):
    """A transformer block as its two halves, which are called by name."""

    def __init__(self, width: int, mlp_width: int, attention: nn.Module, dropout: float) -> None:
        super().__init__()
        self.attention_half = AttentionHalf(width, attention)
        self.mlp_half = MlpHalf(width, mlp_width, dropout)


class Readout(nn.Module):
    """Mean over the real tokens, LayerNorm, Linear: [B, N, d] -> logits [B, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise InputError(f"a classifier needs at least 2 classes, not {classes}")
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            pooled = x.mean(dim=1)  # [B, d]
        else:
            pooled = (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return self.linear(self.norm(pooled))


class Transformer(nn.Module):
    """What image and text backbones share.

    `embedding(inputs)` gives tokens [B, N, d] and their mask or None; `embedding.tokens` is the largest N.
    """

    kind: str
    settings: dict[str, Any]

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "Transformer":
        """A model with fresh weights from the `settings` of another."""
        return cls(**settings)

    def __init__(
        self,
        embedding: nn.Module,
        *,
        width: int,
        depth: int,
        heads: int,
        mlp_width: int,
        classes: int,
        dropout: float,
        kep_layers: int,
        kep_variant: str,
        kep_rank: int,
        kep_multiplier: int,
    ) -> None:
        super().__init__()
        if depth < 1 or mlp_width < 1 or not 0 <= kep_layers <= depth or not 0 <= dropout < 1:
            raise InputError(
                f"depth {depth} and mlp_width {mlp_width} must be >= 1, kep_layers {kep_layers} between 0 and depth, "
                f"dropout {dropout} in [0, 1)"
            )
        check_heads(width, heads)
        self.embedding = embedding
        self.blocks = nn.ModuleList()
        for layer in range(depth):
            if layer < depth - kep_layers:
                attention = SoftmaxAttention(width, heads)
            else:
                attention = KernelEigenpairAttention(
                    width, heads, embedding.tokens, kep_variant, kep_rank, kep_multiplier, dropout
                )
            self.blocks.append(Block(width, mlp_width, attention, dropout))
        self.readout = Readout(width, classes)

    def forward(self, inputs: Any, noise: Noise | None = None) -> Tensor:
        """Logits [B, classes]; `noise` samples the attention layers that are random, None takes their mean."""
        return self.forward_with_penalties(inputs, noise)[0]

    def forward_with_penalties(self, inputs: Any, noise: Noise | None = None) -> tuple[Tensor, Penalties]:
        """Logits [B, classes] and the penalties of the attention layers, summed over layers by name."""
        x, mask = self.embedding(inputs)
        totals: Penalties = {}
        for layer, block in enumerate(self.blocks):
            x, penalties = block.attention_half(x, mask, None if noise is None else partial(noise, layer))
            x = block.mlp_half(x)
            for name, penalty in penalties.items():
                totals[name] = totals.get(name, 0.0) + penalty
        return self.readout(x, mask), totals


class ImageTransformer(Transformer):
    """The paper's vision transformer (arXiv 2602.08920): no class token, learned positions, mean pooling.

    image_size, patch: pixels, square. mlp_width: hidden units of the MLP, whose linears are both followed by GELU
    and dropout. dropout: there, and after kernel-eigenpair attention. kep_layers: the last so many layers have that
    attention, with the other kep_* settings; the rest have softmax attention.
    """

    kind = "image_transformer"

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_width: int,
        classes: int,
        dropout: float = 0.1,
        kep_layers: int = 0,
        kep_variant: str = "concat",
        kep_rank: int = 10,
        kep_multiplier: int = 10,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        shared = {name: settings[name] for name in settings if name not in ("image_size", "channels", "patch")}
        super().__init__(ImageEmbedding(image_size, channels, patch, width), **shared)
        self.settings = settings


def build_model(kind: str, settings: dict[str, Any]) -> nn.Module:
    """A model with fresh weights from what describes it; raises `InputError` for a kind that is not known."""
    if kind not in KINDS:
        raise InputError(f"there is no model of kind {kind!r}; this version knows {', '.join(KINDS)}")
    module, name = KINDS[kind]
    return getattr(importlib.import_module(module), name).from_settings(settings)


def parameter_count(model: nn.Module) -> int:
    """Number of trainable scalars."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def save_model(path: str | Path, model: nn.Module, about: dict[str, Any]) -> None:
    """Write weights, and how to rebuild the model, to one safetensors file: atomic, the same bytes for the same model.

    about: JSON-able notes (experiment, seed, epoch, ...) that `load_model` gives back.
    """
    kind, settings = (getattr(model, name, None) for name in ("kind", "settings"))
    if kind not in KINDS or settings is None:
        raise InputError(
            f"{path}: a {type(model).__name__} cannot be saved without a kind (one of {', '.join(KINDS)}) and settings"
        )
    # One entry of metadata: safetensors does not keep the order of several.
    header = json.dumps({"kind": kind, "settings": settings, "about": about}, sort_keys=True, allow_nan=False)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"director": header})


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[nn.Module, dict[str, Any]]:
    """Read a file of `save_model`: the model in evaluation mode on `device`, and `about`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such model file; train the model first or correct the path")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a whole safetensors file ({error}); delete it and make it again") from error
    try:
        header = json.loads(metadata["director"])
        kind, settings, about = header["kind"], header["settings"], header["about"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: director did not write this safetensors file; give one of `save_model`") from error
    try:
        with torch.random.fork_rng(devices=[]):  # fresh weights are thrown away; the caller's random state is not
            model = build_model(kind, settings).to(device)
        model.load_state_dict(tensors, assign=True)  # keeps the precision of the file
    except (InputError, KeyError, RuntimeError, TypeError) as error:
        reason = textwrap.shorten(str(error), 300)  # torch lists every weight
        raise InputError(f"{path}: its settings and weights do not fit this version of director: {reason}") from error
    return model.eval(), about
