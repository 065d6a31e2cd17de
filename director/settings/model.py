"""The section `model` of an experiment: the paper's transformers (arXiv 2602.08920)."""

from typing import Literal

from pydantic import Field, model_validator

from director.schema import Positive, Rate, Schema


class Model(Schema):
    """What the paper's transformers share."""

    width: Positive = Field(description="width of the residual stream; paper: 384 (images), 256 (CoLA), 128 (IMDB)")
    depth: Positive = Field(description="number of layers; paper: 7 (images), 5 (texts)")
    heads: Positive = Field(description="number of attention heads; paper: 12 (images), 4 (CoLA), 8 (IMDB)")
    mlp_width: Positive = Field(description="hidden width of the MLP; paper: as width")
    classes: int = Field(ge=2, description="number of classes")
    dropout: Rate = Field(0.1, description="dropout rate after both linear maps of the MLP; paper: 0.1")

    @model_validator(mode="after")
    def heads_fill_the_width(self) -> "Model":
        if self.width % self.heads:
            raise ValueError(f"heads {self.heads} does not divide width {self.width}")
        return self


class ImageModel(Model):
    """The paper's image transformer; the kind where none is named."""

    kind: Literal["image"] = Field("image", description="what the model reads")
    image_size: Positive = Field(description="height and width of the images, pixels; paper: 32")
    channels: Positive = Field(description="channels of the images; paper: 3")
    patch: Positive = Field(description="height and width of a patch, pixels; paper: 4")

    @model_validator(mode="after")
    def patches_tile_the_image(self) -> "ImageModel":
        if self.image_size % self.patch:
            raise ValueError(f"patch {self.patch} does not divide image_size {self.image_size}")
        return self


class TextModel(Model):
    """The paper's text transformer; its tokenizer is trained on the training part, or a pretrained one."""

    kind: Literal["text"] = Field(description="what the model reads")
    max_length: Positive = Field(
        description="tokens of a text that are read, the tokenizer's marks included; paper: 512 (IMDB)"
    )
    vocabulary: Positive | None = Field(None, description="tokens of a tokenizer trained on the training part")
    tokenizer: str | None = Field(
        None, description="pretrained tokenizer instead: a folder, a hub name, or package:<module>/<folder>"
    )
    embedding: str | None = Field(
        None, description="start from the token embeddings of this pretrained encoder, the tokenizer's; null: fresh"
    )

    @model_validator(mode="after")
    def one_tokenizer(self) -> "TextModel":
        if (self.vocabulary is None) is (self.tokenizer is None):
            raise ValueError("set either vocabulary (a tokenizer is trained) or tokenizer (a pretrained one)")
        if self.embedding is not None and self.embedding != self.tokenizer:
            raise ValueError(
                f"embedding {self.embedding!r} numbers tokens its own way; set tokenizer to it, not {self.tokenizer!r}"
            )
        return self
