"""The path of timm's vision transformers (`timm.models.vision_transformer`, `timm.models.deit`), read off their parts.

Pre-norm blocks, with layer scale g: y = h + g1 Attn(LN(h)), h = y + g2 MLP(LN(y)). Class, distillation and register
tokens are tokens of the state as patches are. The model is given images [B, C, H, W], as timm's transforms make them.
"""

import copy

from torch import Tensor, nn

from director.errors import InputError
from director.models.attention import split_heads
from director.path.view import Attention, Head, SoftmaxPath, class_name

BLOCK = "timm.models.vision_transformer.Block"
ATTENTIONS = ("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention")  # the second: until 1.0.15


class VisionTransformerPath(SoftmaxPath):
    """The path of a VisionTransformer, or of a VisionTransformerDistilled, as its own forward pass takes it."""

    def __init__(self, model: nn.Module) -> None:
        _check(model)
        ends = [_BlockEnd(block) for block in model.blocks]
        super().__init__(
            model, model.embed_dim, model.blocks[0].attn.num_heads, _Embedding(model), ends, Head(_Logits(model))
        )

    def _attention(self, step, x):
        block = self.model.blocks[step - 1]
        layer = block.attn
        queries, keys, values = (
            split_heads(part, layer.num_heads) for part in layer.qkv(block.norm1(x)).chunk(3, dim=-1)
        )
        queries, keys = layer.q_norm(queries), layer.k_norm(keys)
        return Attention(queries, keys, values, layer.scale, layer.proj, getattr(block.ls1, "gamma", 1.0))


class _Embedding(nn.Module):
    """Images -> X[0] and no mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        tokens = ("cls_token", "dist_token", "reg_token", "pos_embed")
        self.parts = _part(model, "patch_embed", *tokens, "pos_drop", "patch_drop", "norm_pre")

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        parts = self.parts
        return parts.norm_pre(parts.patch_drop(parts._pos_embed(parts.patch_embed(images)))), None


class _BlockEnd(nn.Module):
    """Second half of a block, y -> h = y + g2 MLP(LN(y)); dropout and stochastic depth are off in evaluation."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp, self.gain, self.drop = block.norm2, block.mlp, block.ls2, block.drop_path2

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.gain(self.mlp(self.norm(x))))


class _Logits(nn.Module):
    """Last layer's output -> logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts = _part(model, "norm", "attn_pool", "fc_norm", "head_drop", "head", "head_dist")
        self.parts.distilled_training = False  # a student has the mean of both heads in training, too

    def forward(self, x: Tensor) -> Tensor:
        return self.parts.forward_head(self.parts.norm(x))


def _part(model: nn.Module, *names: str) -> nn.Module:
    """The model with its parameters and children of these `names` only, shared with it: another view of the same."""
    part = copy.copy(model)
    for kind in ("_parameters", "_modules"):
        part.__dict__[kind] = {name: value for name, value in getattr(model, kind).items() if name in names}
    part.training = False
    return part


def _check(model: nn.Module) -> None:
    """Raise `InputError` naming what this path does not cover."""
    name = class_name(model)
    if not len(model.blocks):
        raise InputError(f"{name} has no blocks, so no path")
    if not model.global_pool or isinstance(model.head, nn.Identity):
        raise InputError(
            f"{name} is no classifier: global_pool is {model.global_pool!r}, num_classes {model.num_classes}; "
            "make it with a pooling and a head"
        )
    for block in model.blocks:
        if class_name(block) != BLOCK:
            raise InputError(f"{name} has blocks {class_name(block)}; only {BLOCK} has a residual path here")
        layer = block.attn
        if class_name(layer) not in ATTENTIONS:
            raise InputError(f"{name} has attention {class_name(layer)}; only {ATTENTIONS[0]} has a residual path here")
        if not isinstance(layer.norm, nn.Identity) or getattr(layer, "gate", None) is not None:
            raise InputError(f"{name} norms or gates the heads before the output map, which has no residual path here")
