"""The paper's transformers of images and of texts (arXiv 2602.08920).

A backbone is embedding -> blocks -> readout, and a block is an attention half and an MLP half, so that the path of
DIRECTOR, which is cut between the halves, can be read off the parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from director.data.tokenizer import check_length, load_pretrained, vocabulary_size
from director.errors import InputError
from director.models.attention import ATTENTIONS, Draw, Penalties, SoftmaxAttention, check_heads
from director.noise import Noise, fold


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


class TextEmbedding(nn.Module):
    """{"tokens": int64 [B, T], "mask": bool [B, T]} -> tokens [B, T, d], zero at padding, and the mask.

    Positions count the tokens of a text from 0. tokenizer: JSON of `director.data.tokenizer`, kept so that a model file
    needs nothing beside it to read texts. max_length: tokens. width: d. table_width: of the embedding table; a linear
    map follows where it is not d.
    """

    def __init__(self, tokenizer: str, max_length: int, width: int, table_width: int) -> None:
        super().__init__()
        check_length(tokenizer, max_length)
        self.tokens = max_length
        self.table = nn.Embedding(vocabulary_size(tokenizer), table_width)
        self.linear = nn.Identity() if table_width == width else nn.Linear(table_width, width)
        self.position = nn.Parameter(torch.randn(max_length, width))

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Raises InputError for a text longer than the model was made for."""
        tokens, mask = inputs["tokens"], inputs["mask"]
        length = tokens.shape[1]
        if length > self.tokens:
            raise InputError(f"a text of {length} tokens was given to a model of max_length {self.tokens}; cut it")
        x = self.linear(self.table(tokens)) + self.position[:length]
        return x * mask[..., None], mask


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
        self.is_random = not isinstance(attention, SoftmaxAttention)  # its output can be drawn


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


class PathReadout(nn.Module):
    """X[L], the state after the last attention half -> logits: the last MLP half, then the readout."""

    def __init__(self, mlp_half: MlpHalf, readout: Readout) -> None:
        super().__init__()
        self.mlp_half, self.readout = mlp_half, readout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [B, classes]."""
        return self.readout(self.mlp_half(x), mask)


class Transformer(nn.Module, ABC):
    """What image and text backbones share.

    `embedding(inputs)` gives tokens [B, N, d] and their mask or None; `embedding.tokens` is the largest N. attention:
    what the last layers have in place of softmax attention: `kind` (one of director.models.attention.ATTENTIONS),
    `layers` (how many of them) and the keywords of that layer; None for softmax in all.
    """

    kind: str
    settings: dict[str, Any]

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "Transformer":
        """A model with fresh weights from the `settings` of another."""
        return cls(**settings)

    @classmethod
    @abstractmethod
    def embedding_of(cls, settings: Mapping[str, Any]) -> nn.Module:
        """The embedding, with fresh weights, of a model with these `settings`."""

    @classmethod
    def ends_of(cls, settings: Mapping[str, Any]) -> tuple[nn.Module, PathReadout]:
        """What stands before and behind the path, fresh, of a model with these `settings`: nothing else is built."""
        width, dropout = settings["width"], settings["dropout"]
        mlp_half, readout = MlpHalf(width, settings["mlp_width"], dropout), Readout(width, settings["classes"])
        return cls.embedding_of(settings), PathReadout(mlp_half, readout)

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        width, depth, heads, dropout = (settings[name] for name in ("width", "depth", "heads", "dropout"))
        kind, special_layers, layer_settings = _attention(settings["attention"])
        if depth < 1 or settings["mlp_width"] < 1 or not 0 <= special_layers <= depth or not 0 <= dropout < 1:
            raise InputError(
                f"depth {depth} and mlp_width {settings['mlp_width']} must be >= 1, attention.layers {special_layers} "
                f"between 0 and depth, dropout {dropout} in [0, 1)"
            )
        check_heads(width, heads)
        self.settings = settings
        self.embedding = self.embedding_of(settings)
        self.blocks = nn.ModuleList()
        for layer in range(depth):
            if layer < depth - special_layers:
                attention = SoftmaxAttention(width, heads)
            else:
                attention = ATTENTIONS[kind](width, heads, self.embedding.tokens, dropout, **layer_settings)
            self.blocks.append(Block(width, settings["mlp_width"], attention, dropout))
        self.readout = Readout(width, settings["classes"])

    def forward(self, inputs: Any, noise: Noise | None = None, samples: int = 1) -> Tensor:
        """Logits [S*B, classes] of S samples of each input, sample-major (`director.noise.fold`).

        `noise` samples the attention layers that are random, None takes their mean. The layers before the first random
        one run once for all samples of an input.
        """
        return self.forward_with_penalties(inputs, noise, samples)[0]

    def forward_with_penalties(
        self, inputs: Any, noise: Noise | None = None, samples: int = 1
    ) -> tuple[Tensor, Penalties]:
        """What `forward` gives, and the penalties of the attention layers, summed over layers by name."""
        x, mask = self.embedding(inputs)
        totals: Penalties = {}
        first_random = next((layer for layer, block in enumerate(self.blocks) if block.is_random), 0)
        for layer, block in enumerate(self.blocks):
            if layer == first_random:
                x, mask = fold(x, samples), None if mask is None else fold(mask, samples)
            x, penalties = block.attention_half(x, mask, None if noise is None else partial(noise, layer))
            x = block.mlp_half(x)
            for name, penalty in penalties.items():
                totals[name] = totals.get(name, 0.0) + penalty
        return self.readout(x, mask), totals


class ImageTransformer(Transformer):
    """The paper's vision transformer: no class token, learned positions, mean pooling.

    image_size, patch: pixels, square. mlp_width: hidden units of the MLP, whose linears are both followed by GELU
    and dropout. dropout: there, and after attention that is a Gaussian process. attention: see `Transformer`.
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
        attention: dict[str, Any] | None = None,
    ) -> None:
        super().__init__({name: value for name, value in locals().items() if name not in ("self", "__class__")})

    @classmethod
    def embedding_of(cls, settings: Mapping[str, Any]) -> ImageEmbedding:
        """The embedding of square patches, with fresh weights."""
        return ImageEmbedding(*(settings[name] for name in ("image_size", "channels", "patch", "width")))


class TextTransformer(Transformer):
    """The paper's text transformer: no class token, learned positions, mean over the real tokens.

    tokenizer, max_length: see `TextEmbedding`. embedding_width: columns of the token table, None for `width`; see
    `pretrained_embedding`. The rest as in `ImageTransformer`; attention that works on one number of tokens only
    (kernel-eigenpair `concat`) is refused, as texts differ in length.
    """

    kind = "text_transformer"

    def __init__(
        self,
        *,
        tokenizer: str,
        max_length: int,
        width: int,
        depth: int,
        heads: int,
        mlp_width: int,
        classes: int,
        dropout: float = 0.1,
        embedding_width: int | None = None,
        attention: dict[str, Any] | None = None,
    ) -> None:
        super().__init__({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        if any(block.attention_half.attention.fixed_length for block in self.blocks):
            raise InputError(f"attention {attention} needs inputs of one length, but texts differ; use the variant sum")

    @classmethod
    def embedding_of(cls, settings: Mapping[str, Any]) -> TextEmbedding:
        """The embedding of tokens, with fresh weights."""
        tokenizer, max_length, width = (settings[name] for name in ("tokenizer", "max_length", "width"))
        return TextEmbedding(tokenizer, max_length, width, settings["embedding_width"] or width)


BACKBONES: dict[str, type[Transformer]] = {model.kind: model for model in (ImageTransformer, TextTransformer)}


def pretrained_embedding(name: str) -> Tensor:
    """Token table float32 [vocabulary, width] of a pretrained encoder, brought to mean 0 and variance 1.

    That is the scale of a fresh table and of the positions beside it, which would else drown it. name: see
    `load_pretrained`. Raises InputError if it is not there.
    """
    from transformers import AutoModel

    model = load_pretrained(AutoModel, name, "embedding")
    table = model.get_input_embeddings().weight.detach().float()
    return (table - table.mean()) / table.std()


def _attention(settings: Mapping[str, Any] | None) -> tuple[str, int, dict[str, Any]]:
    """Kind, number of layers and keywords of the attention in place of softmax; 0 layers for None."""
    if settings is None:
        return "softmax", 0, {}
    kind, layers = settings.get("kind"), settings.get("layers")
    if kind not in ATTENTIONS or not isinstance(layers, int):
        raise InputError(f"attention {dict(settings)} needs `layers` and a kind, one of {', '.join(ATTENTIONS)}")
    return kind, layers, {name: value for name, value in settings.items() if name not in ("kind", "layers")}
