"""The section `model` of an experiment: the paper's transformers (arXiv 2602.08920), or a pretrained classifier."""

from typing import ClassVar, Literal

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


class PretrainedModel(Schema):
    """Somebody else's pretrained model, fine-tuned here or taken as it is, and what a student replaces of it.

    timm's ViT and DeiT; of transformers BERT, which MiniLM is, RoBERTa, XLM-R, DistilBERT, ViT, DINOv2, Llama, Qwen2.
    """

    kind: Literal["pretrained"] = Field(description="what the model reads")
    source: str = Field(
        min_length=1,
        description="checkpoint: a folder with config.json and safetensors, a hub name, or package:<module>/<folder>",
    )
    fine_tune: bool = Field(
        True, description="train it further, with a fresh head for other classes; false: take the classifier as it is"
    )
    classes: int = Field(ge=2, description="number of classes")
    dropout: Rate = Field(0.1, description="dropout rate, wherever its architecture has one")
    max_length: Positive | None = Field(None, description="tokens of a text that are read, marks included; of texts")
    image_size: Positive | None = Field(
        None, description="images are resized to so many pixels in height and width; of images; null: the checkpoint's"
    )
    channels: Positive = Field(3, description="channels of the images")
    last: Positive | None = Field(
        None, description="layers at its end that a student replaces, the others stay as they are; null: a third"
    )
    states_every: Positive = Field(1, description="layers that are one step of a student; it divides `last`")
    depth: ClassVar[None] = None  # the checkpoint's, and no backbone is named after it

    @model_validator(mode="after")
    def steps_fill_what_is_replaced(self) -> "PretrainedModel":
        if self.last is not None and self.last % self.states_every:
            raise ValueError(f"states_every {self.states_every} does not divide last {self.last}; choose another")
        return self

    def fault_with(self, kind: str) -> str | None:
        """Key and remedy of what does not go with a data set of this kind, images or texts; None if all does."""
        if kind == "texts" and self.max_length is None:
            return "max_length is missing: texts are cut to so many tokens; set it"
        if kind == "texts" and self.image_size is not None:
            return "image_size is for images, the data set holds texts; leave it out"
        if kind == "images" and self.max_length is not None:
            return "max_length is for texts, the data set holds images; leave it out"
        return None
