"""The paper's text transformer: trainable token embeddings and learned positions under the same blocks as images."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from director.backbones import Transformer
from director.data.tokenizer import load_pretrained, vocabulary_size
from director.files import InputError


class TextEmbedding(nn.Module):
    """{"tokens": int64 [B, T], "mask": bool [B, T]} -> tokens [B, T, d], zero at padding, and the mask.

    Positions count the tokens of a text from 0. width: d. table_width: of the embedding table; a linear map follows
    where it is not d.
    """

    def __init__(self, vocabulary: int, max_length: int, width: int, table_width: int) -> None:
        super().__init__()
        if max_length < 1:
            raise InputError(f"max_length is {max_length}; a text needs 1 token or more")
        self.tokens = max_length
        self.table = nn.Embedding(vocabulary, table_width)
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


class TextTransformer(Transformer):
    """The text transformer of the paper (arXiv 2602.08920): no class token, learned positions, mean over real tokens.

    tokenizer: JSON of `director.data.tokenizer`, kept in the model, so that a model file needs nothing beside it to
    read texts. max_length: tokens. embedding_width: columns of the token table, None for `width`; see
    `pretrained_embedding`. The rest as in `ImageTransformer`; kernel-eigenpair layers are of the variant `sum`, as
    texts differ in length.
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
        kep_layers: int = 0,
        kep_variant: str = "sum",
        kep_rank: int = 10,
        kep_multiplier: int = 10,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if kep_layers and kep_variant != "sum":
            raise InputError(f"kep_variant is {kep_variant!r}; texts differ in length, which needs `sum`")
        embedding = TextEmbedding(vocabulary_size(tokenizer), max_length, width, embedding_width or width)
        own = ("tokenizer", "max_length", "embedding_width")
        super().__init__(embedding, **{name: settings[name] for name in settings if name not in own})
        self.settings = settings


def pretrained_embedding(name: str) -> Tensor:
    """Token table float32 [vocabulary, width] of a pretrained encoder, brought to mean 0 and variance 1.

    That is the scale of a fresh table and of the positions beside it, which would else drown it. name: see
    `load_pretrained`. Raises InputError if it is not there.
    """
    from transformers import AutoModel

    model = load_pretrained(AutoModel, name, "embedding")
    table = model.get_input_embeddings().weight.detach().float()
    return (table - table.mean()) / table.std()
