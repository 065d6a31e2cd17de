"""The paths of classifiers of the library `transformers`, read off their parts.

    post-norm (BERT)       y = h + Attn(h)         h = LN2(LN1(y) + MLP(LN1(y)))
    pre-norm (ViT, Llama)  y = h + Attn(LN1(h))    h = y + MLP(LN2(y))

X[l] is y of layer l in both: of a post-norm layer it is the sum before its first LayerNorm, which opens the next
segment. The model is given what it takes itself: a mapping with its own names, such as a tokenizer makes, or its main
tensor alone.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from director.errors import InputError
from director.models.attention import causal_mask, split_heads
from director.path.view import Attention, Head, SoftmaxPath, class_name


class TransformersPath(SoftmaxPath):
    """What the paths of this library share. Subclasses say what their model takes, the main input first."""

    takes: tuple[str, ...]

    def _logits(self, inputs):
        return self.model(**_by_name(inputs, self.takes), return_dict=True).logits


def _by_name(inputs: Any, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Inputs by name; raises `InputError` for what the path knows nothing of, which would change the model's logits."""
    given = {names[0]: inputs} if isinstance(inputs, Tensor) else inputs
    if not isinstance(given, Mapping) or names[0] not in given or not set(given) <= set(names):
        got = ", ".join(given) if isinstance(given, Mapping) else f"of type {type(given).__name__}"
        raise InputError(f"the inputs are {got}; this path takes {names[0]}, and of others only {list(names[1:])}")
    return {name: value for name, value in given.items() if value is not None}


def _mask(arguments: dict[str, Tensor]) -> Tensor | None:
    """The attention mask, taken out of the arguments: bool [B, N] or None."""
    mask = arguments.pop("attention_mask", None)
    if mask is None:
        return None
    if mask.ndim != 2:
        raise InputError(f"attention_mask has shape {tuple(mask.shape)}; give one of [texts, tokens], 1 = real")
    return mask != 0


class _FirstToken(nn.Module):
    """[B, N, d] -> [B, d]: the class token."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


# -- post-norm encoders of texts; their first token is read out, so texts are padded on the right


class BertPath(TransformersPath):
    """The path of BERT, which MiniLM is too, and of RoBERTa and XLM-R, whose layers are the same."""

    takes = ("input_ids", "attention_mask", "token_type_ids", "position_ids")

    def __init__(self, model: nn.Module) -> None:
        config, encoder = model.config, model.base_model
        if config.is_decoder or config.add_cross_attention:
            raise InputError(f"{class_name(model)} is made as a decoder, which has no residual path here")
        self.layers = encoder.encoder.layer
        # RoBERTa has no pooler: its classifier does all of it
        head = [model.classifier] if encoder.pooler is None else [encoder.pooler, model.dropout, model.classifier]
        super().__init__(
            model,
            config.hidden_size,
            config.num_attention_heads,
            _EncoderEmbedding(encoder.embeddings, self.takes),
            [_BertEnd(layer) for layer in self.layers],
            Head(*head),
        )

    def _attention(self, step, x):
        attention = self.layers[step - 1].attention
        queries, keys, values = (
            split_heads(linear(x), self.heads)
            for linear in (attention.self.query, attention.self.key, attention.self.value)
        )
        return Attention(queries, keys, values, attention.self.scaling, attention.output.dense)


class DistilBertPath(TransformersPath):
    """The path of DistilBERT."""

    takes = ("input_ids", "attention_mask", "position_ids")

    def __init__(self, model: nn.Module) -> None:
        encoder = model.distilbert
        self.layers = encoder.transformer.layer
        super().__init__(
            model,
            model.config.dim,
            model.config.n_heads,
            _EncoderEmbedding(encoder.embeddings, self.takes),
            [_DistilBertEnd(layer) for layer in self.layers],
            Head(_FirstToken(), model.pre_classifier, nn.ReLU(), model.dropout, model.classifier),
        )

    def _attention(self, step, x):
        layer = self.layers[step - 1].attention
        queries, keys, values = (
            split_heads(linear(x), self.heads) for linear in (layer.q_lin, layer.k_lin, layer.v_lin)
        )
        return Attention(queries, keys, values, layer.scaling, layer.out_lin)


class _EncoderEmbedding(nn.Module):
    """A text as the model takes it -> X[0] and its mask."""

    def __init__(self, embeddings: nn.Module, takes: tuple[str, ...]) -> None:
        super().__init__()
        self.embeddings, self.takes = embeddings, takes

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Raises InputError where the first token of a text, which is read out, is padding."""
        arguments = _by_name(inputs, self.takes)
        mask = _mask(arguments)
        if mask is not None and not mask[:, 0].all():
            raise InputError(
                "a text is padded on the left, but this model reads its first token out; "
                'pad on the right (padding_side="right" of the tokenizer)'
            )
        return self.embeddings(**arguments), mask


class _BertEnd(nn.Module):
    """y -> h, what follows the attention of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.norm, self.intermediate, self.output = layer.attention.output.LayerNorm, layer.intermediate, layer.output

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.output(self.intermediate(x), x)


class _DistilBertEnd(nn.Module):
    """y -> h, what follows the attention of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp, self.output_norm = layer.sa_layer_norm, layer.ffn, layer.output_layer_norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.output_norm(self.mlp(x) + x)


# -- pre-norm transformers of images


class VitPath(TransformersPath):
    """The path of ViT; its first token is the class token."""

    takes = ("pixel_values",)

    def __init__(self, model: nn.Module) -> None:
        config, encoder = model.config, model.vit
        if not hasattr(encoder, "layers"):
            raise InputError(f"{class_name(model)} is built otherwise in this version of transformers; update it")
        self.layers = encoder.layers
        super().__init__(
            model,
            config.hidden_size,
            config.num_attention_heads,
            _PixelEmbedding(encoder.embeddings, self.takes),
            [_PreNormEnd(layer.layernorm_after, layer.mlp, layer.dropout) for layer in self.layers],
            Head(encoder.layernorm, _FirstToken(), model.classifier),
        )

    def _attention(self, step, x):
        layer = self.layers[step - 1]
        own, x = layer.attention, layer.layernorm_before(x)
        queries, keys, values = (split_heads(linear(x), self.heads) for linear in (own.q_proj, own.k_proj, own.v_proj))
        return Attention(queries, keys, values, own.scaling, own.o_proj)


class Dinov2Path(TransformersPath):
    """The path of DINOv2, a pre-norm transformer with layer scale; class token and mean patch are read out."""

    takes = ("pixel_values",)

    def __init__(self, model: nn.Module) -> None:
        config, encoder = model.config, model.dinov2
        self.layers = encoder.encoder.layer
        embeddings = copy.copy(encoder.embeddings)  # another view of the same, without what only pretraining uses
        embeddings._parameters = {**embeddings._parameters, "mask_token": None}
        super().__init__(
            model,
            config.hidden_size,
            config.num_attention_heads,
            _PixelEmbedding(embeddings, self.takes),
            [
                _PreNormEnd(layer.norm2, nn.Sequential(layer.mlp, layer.layer_scale2), layer.drop_path)
                for layer in self.layers
            ],
            Head(encoder.layernorm, _FirstTokenAndMean(), model.classifier),
        )

    def _attention(self, step, x):
        layer = self.layers[step - 1]
        own, x = layer.attention, layer.norm1(x)
        queries, keys, values = (split_heads(linear(x), self.heads) for linear in (own.q_proj, own.k_proj, own.v_proj))
        return Attention(queries, keys, values, own.scaling, own.o_proj, layer.layer_scale1.lambda1)


class _FirstTokenAndMean(nn.Module):
    """[B, N, d] -> [B, 2d]: the class token, and the mean of the others."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, 0], x[:, 1:].mean(dim=1)], dim=1)


class _PixelEmbedding(nn.Module):
    """Images [B, C, H, W] -> X[0] and no mask."""

    def __init__(self, embeddings: nn.Module, takes: tuple[str, ...]) -> None:
        super().__init__()
        self.embeddings, self.takes = embeddings, takes

    def forward(self, inputs: Any) -> tuple[Tensor, None]:
        (images,) = _by_name(inputs, self.takes).values()
        return self.embeddings(images.to(self.embeddings.position_embeddings.dtype)), None


class _PreNormEnd(nn.Module):
    """y -> h, the second half of a layer."""

    def __init__(self, norm: nn.Module, mlp: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp, self.dropout = norm, mlp, dropout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp(self.norm(x)))


# -- pre-norm decoders of texts: causal, with rotary positions; the last token of a text is read out


class DecoderPath(TransformersPath):
    """The path of Llama and of Qwen2, whose queries may share keys and values in groups."""

    takes = ("input_ids", "attention_mask")
    causal = True

    def __init__(self, model: nn.Module) -> None:
        config, decoder = model.config, model.base_model
        name = class_name(model)
        if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            raise InputError(f"{name} has layers of sliding attention, which have no residual path here")
        if (kind := config.rope_parameters["rope_type"]) in ("dynamic", "longrope"):
            raise InputError(f"{name} has {kind} positions, which change with the longest text; no residual path here")
        self.layers, self.rotary = decoder.layers[: config.num_hidden_layers], decoder.rotary_emb
        super().__init__(
            model,
            config.hidden_size,
            config.num_attention_heads,
            _DecoderEmbedding(decoder.embed_tokens, config.pad_token_id, self.takes),
            [_PreNormEnd(layer.post_attention_layernorm, layer.mlp, nn.Identity()) for layer in self.layers],
            _LastTokenHead(decoder.norm, model.score),
        )

    def _attention(self, step, x):
        layer = self.layers[step - 1]
        own, x = layer.self_attn, layer.input_layernorm(x)
        queries, keys, values = (
            linear(x).unflatten(-1, (-1, own.head_dim)).transpose(1, 2)
            for linear in (own.q_proj, own.k_proj, own.v_proj)
        )
        # Positions count padding, too, in the model's own forward pass; only their differences matter.
        cosines, sines = self.rotary(x, torch.arange(x.shape[1], device=x.device)[None])
        queries, keys = (part * cosines + _turned(part) * sines for part in (queries, keys))
        keys, values = (part.repeat_interleave(own.num_key_value_groups, 1) for part in (keys, values))
        return Attention(queries, keys, values, own.scaling, own.o_proj)

    def _allowed(self, mask, tokens, device):
        return causal_mask(tokens, mask, device)


def _turned(x: Tensor) -> Tensor:
    """Each pair of channels (i, i + dh/2) turned by 90 degrees."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class _DecoderEmbedding(nn.Module):
    """A text as the model takes it -> X[0] and the mask, whose last real token is the one that is read out.

    The model reads out the last token that is not its padding token. What follows it (an end mark that is the padding
    token, say) does not matter to a causal model, and is no part of the path.
    """

    def __init__(self, table: nn.Module, padding: int | None, takes: tuple[str, ...]) -> None:
        super().__init__()
        self.table, self.padding, self.takes = table, padding, takes

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Raises InputError where the token that is read out is masked."""
        arguments = _by_name(inputs, self.takes)
        mask, tokens = _mask(arguments), arguments["input_ids"]
        if self.padding is None:
            if len(tokens) > 1:
                raise InputError("the model has no padding token, so it reads one text at a time; set pad_token_id")
            last = torch.full((1,), tokens.shape[1] - 1, device=tokens.device)
        else:
            last = _last(tokens != self.padding)
        kept = torch.arange(tokens.shape[1], device=tokens.device) <= last[:, None]
        mask = kept if mask is None else kept & mask
        if not mask.gather(1, last[:, None]).all():
            raise InputError("the last token that is not the padding token is masked, but this model reads it out")
        return self.table(tokens), mask


class _LastTokenHead(nn.Module):
    """The last real token -> logits."""

    def __init__(self, norm: nn.Module, score: nn.Module) -> None:
        super().__init__()
        self.norm, self.score = norm, score

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device)
        return self.score(self.norm(x[rows, _last(mask)]))


def _last(mask: Tensor) -> Tensor:
    """Position of the last True of each row [B, N]; 0 where there is none."""
    return (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(-1)
