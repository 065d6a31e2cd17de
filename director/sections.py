"""The sections `data` and `model` of an experiment's settings, and the data sets there are."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

# name -> the data sets it is generated from, none for a published one
DATASETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("digits", "photographs", "cifar10", "cifar100", "svhn", "lsun"), ()),
    "digits_c": ("digits",),
    "cifar10_c": ("cifar10",),
    "cifar10_c_200": ("cifar10",),
    **dict.fromkeys(("cola", "cola_ood", "imdb", "agreement", "agreement_shifted"), ()),
}
TEXTS = frozenset({"cola", "cola_ood", "imdb", "agreement", "agreement_shifted"})  # the others are images
SHIFTED = {"cola_ood": "cola", "agreement_shifted": "agreement"}  # other examples of a set's task -> that set
WITH_PROBABILITY = frozenset({"agreement", "agreement_shifted"})  # whose labels were drawn from a known distribution
DatasetName = Literal[tuple(DATASETS)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Normalisation(Schema):
    """What makes pixels numbers of order one: (pixel / scale - mean) / std, for every image that meets the model."""

    scale: float = Field(255.0, gt=0, description="pixel value that counts as 1")
    mean: list[float] = Field(description="mean per channel of the scaled pixels of the training set")
    std: list[Annotated[float, Field(gt=0)]] = Field(description="standard deviation per channel of the same")


class Augmentation(Schema):
    """Training images are cropped at random after zero padding, and mirrored (method.md, section 6)."""

    padding: int = Field(0, ge=0, description="pixels of zero padding a random crop may shift into; paper: 4")
    flip: bool = Field(False, description="mirror left to right with probability 1/2; paper: true")


class Data(Schema):
    """The data set that trains and tests, and the suites that shift it."""

    name: DatasetName = Field(description="data set that trains, selects and tests")
    train: Positive = Field(description="number of training examples")
    validation: Positive = Field(description="number of validation examples: they choose epochs and temperatures")
    corrupted: Literal[tuple(name for name, of in DATASETS.items() if of)] | None = Field(
        None, description="data set of the suite `corrupted`: the test examples, shifted"
    )
    corrupted_examples: Positive | None = Field(
        None, description="test examples in the suite `corrupted`, evenly spaced; null for all"
    )
    shifted: Literal[tuple(SHIFTED)] | None = Field(
        None, description="data set of the suite `shifted`: other examples of the same task, from elsewhere"
    )
    out_of_distribution: list[DatasetName] = Field([], description="data sets of the suites `ood-<name>`")
    test_examples: Positive | None = Field(
        None, description="examples in each of the suites `test`, `shifted` and `ood-`, evenly spaced; null for all"
    )
    protocol: Literal["held_out", "paper"] = Field(
        "held_out", description="cola only; paper: the test part also selects and calibrates, as in the authors' code"
    )
    normalisation: Normalisation | None = Field(None, description="of all images; required for them, null for texts")
    augmentation: Augmentation | None = Field(None, description="augmentation of the training images; null for none")

    @model_validator(mode="after")
    def of_one_kind(self) -> "Data":
        foreign = [name for name in (self.corrupted, self.shifted, *self.out_of_distribution) if name]
        for name in foreign:
            if (name in TEXTS) is not (self.name in TEXTS):
                kinds = ["texts" if each in TEXTS else "images" for each in (self.name, name)]
                raise ValueError(f"{self.name} holds {kinds[0]}, {name} {kinds[1]}: no model reads both; drop one")
        if self.corrupted and self.name not in DATASETS[self.corrupted]:
            raise ValueError(f"corrupted {self.corrupted!r} is not a shifted copy of {self.name!r}; choose its own")
        if self.shifted and SHIFTED[self.shifted] != self.name:
            raise ValueError(f"shifted {self.shifted!r} belongs to {SHIFTED[self.shifted]!r}, not to {self.name!r}")
        if self.protocol == "paper" and self.name != "cola":
            raise ValueError(f"protocol 'paper' is for cola, not for {self.name}; leave it out")
        if self.name in TEXTS and (self.normalisation or self.augmentation):
            raise ValueError(f"{self.name} holds texts: leave out normalisation and augmentation, which are for images")
        if self.name not in TEXTS and self.normalisation is None:
            raise ValueError(f"{self.name} holds images: add normalisation, the mean and std of its training pixels")
        return self


class Model(Schema):
    """What the paper's transformers share (protocols.md, section 2)."""

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
    max_length: Positive = Field(description="tokens of a text that are read; paper: 512 (IMDB)")
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
