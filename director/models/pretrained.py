"""Somebody else's pretrained classifier, of timm or transformers, as a model of this project: the network is unchanged.

Its settings say how the network is built, with the tokenizer of a text model in them, so that a file of weights needs
neither the checkpoint that it came from nor a hub.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from director.data.tokenizer import check_length, folder_in_package, pad_id, pretrained_tokenizer, vocabulary_size
from director.errors import InputError
from director.files import file_digest, read_json
from director.settings.model import PretrainedModel

CONFIG, WEIGHTS = "config.json", "*.safetensors"
FILES = (CONFIG, WEIGHTS, "*.safetensors.index.json", "preprocessor_config.json", "*token*", "vocab*", "merges.txt")
TIMM_DROPOUTS = ("drop_rate", "proj_drop_rate", "attn_drop_rate")
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # numbers of Pillow, in files of transformers


class Prepare(nn.Module):
    """What a data set gives -> what the network takes; without weights.

    Texts {"tokens": int64 [B, T], "mask": bool [B, T]} get the network's names. Images [B, C, H, W], normalised, are
    resized to `image_size`, which comes to the same as resizing them before.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.image_size, self.interpolation = settings.get("image_size"), settings.get("interpolation")

    def forward(self, inputs: Any) -> Any:
        if self.image_size is None:
            return {"input_ids": inputs["tokens"], "attention_mask": inputs["mask"].long()}
        size = (self.image_size, self.image_size)
        if inputs.shape[2:] == size:
            return inputs
        return F.interpolate(inputs, size, mode=self.interpolation, antialias=True)


class PretrainedClassifier(nn.Module):
    """A network of timm or transformers that reads the data sets of this project: `network(prepare(inputs))`.

    settings: `library`, `architecture` (what that library builds the network from), `classes`, `last` and
    `states_every` (`director.settings.model.PretrainedModel`); of texts `tokenizer` and `max_length`; of images
    `image_size`, `interpolation` and `normalisation`, None where the data set has its own.
    """

    kind = "pretrained"

    def __init__(self, network: nn.Module, settings: dict[str, Any]) -> None:
        super().__init__()
        self.network, self.prepare, self.settings = network, Prepare(settings), settings

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "PretrainedClassifier":
        """A model with fresh weights from the `settings` of another; no checkpoint is read."""
        return cls(_network(settings), settings)

    def forward(self, inputs: Any) -> Tensor:
        """Logits [B, classes]."""
        inputs = self.prepare(inputs)
        output = self.network(**inputs) if isinstance(inputs, Mapping) else self.network(inputs)
        return output if isinstance(output, Tensor) else output.logits


def pretrained_classifier(model: PretrainedModel, reads: str, normalised: bool) -> tuple[PretrainedClassifier, str]:
    """The network of a checkpoint as a classifier, and a digest of the weights that it starts from.

    reads: `texts` or `images`. normalised: whether the images are normalised otherwise than the checkpoint says. A head
    that the checkpoint has not is fresh, from torch's generator. Raises InputError for a checkpoint that is not there,
    has no safetensors, is not what its config says, or reads something else; and, where it is not fine-tuned, for one
    that is no classifier of these classes.
    """
    folder = checkpoint_folder(model.source)
    config = read_json(folder / CONFIG)
    library = "timm" if "architecture" in config else "transformers"
    weights = sorted(folder.glob(WEIGHTS))
    if not weights:
        raise InputError(f"model.source {model.source}: {folder} has no file {WEIGHTS}; give a checkpoint of that kind")
    settings: dict[str, Any] = {
        "library": library,
        "classes": model.classes,
        "last": model.last,
        "states_every": model.states_every,
    }
    if reads == "texts":
        settings |= {"tokenizer": pretrained_tokenizer(str(folder)), "max_length": model.max_length}
        check_length(settings["tokenizer"], model.max_length)
    if library == "timm":
        network, found = _from_timm(model, reads, config, weights)
    else:
        network, found = _from_transformers(model, reads, folder, settings)
    settings |= found
    if reads == "images" and normalised:
        settings["normalisation"] = None
    elif reads == "images" and len(settings["normalisation"]["mean"]) != model.channels:
        raise InputError(
            f"model.source {model.source}: its normalisation is not of {model.channels} channels; "
            "set data.normalisation"
        )
    return PretrainedClassifier(network.float(), settings), " ".join(map(file_digest, weights))


def checkpoint_folder(source: str) -> Path:
    """The folder of a checkpoint, see `PretrainedModel.source`; a name on the hub is downloaded, or found in its cache.

    Raises InputError where there is none, before anything of it is loaded.
    """
    if source.startswith("package:"):
        folder = Path(folder_in_package(source, "model.source"))
    elif Path(source).is_dir():
        folder = Path(source)
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(source, allow_patterns=list(FILES)))
        except (OSError, ValueError) as error:  # the library's errors are of these kinds
            reason = " ".join(str(error).split())
            raise InputError(
                f"model.source {source}: neither a folder nor a checkpoint that the hub gives ({reason}); correct the "
                "name, or give a folder or package:<module>/<folder>"
            ) from error
    if not (folder / CONFIG).is_file():
        raise InputError(f"model.source {source}: {folder} has no {CONFIG}, so it is no checkpoint; give one that has")
    return folder


def _network(settings: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights."""
    architecture = dict(settings["architecture"])
    if settings["library"] == "timm":
        import timm

        return timm.create_model(architecture.pop("name"), pretrained=False, **architecture)
    from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

    loader = AutoModelForImageClassification if "image_size" in settings else AutoModelForSequenceClassification
    return loader.from_config(AutoConfig.for_model(**architecture), trust_remote_code=False)


def _from_timm(
    model: PretrainedModel, reads: str, config: Mapping[str, Any], weights: list[Path]
) -> tuple[nn.Module, dict[str, Any]]:
    """The network, and the settings that are found out with it."""
    import timm
    from safetensors.torch import load_file

    name, own, origin = config["architecture"], config.get("num_classes", 0), f"model.source {model.source}"
    known = dict(config.get("pretrained_cfg") or {})
    size = model.image_size or known.get("input_size", [None])[-1]
    if reads != "images":
        raise InputError(f"{origin}: timm's {name} reads images, but the data set holds texts; give a model of texts")
    if not model.fine_tune and own != model.classes:
        raise _other_classes(model, own)
    tensors = {key: tensor for file in weights for key, tensor in load_file(file).items()}
    architecture = {
        "num_classes": model.classes,
        "in_chans": model.channels,
        **dict.fromkeys(TIMM_DROPOUTS, model.dropout),
        **({"img_size": size} if size else {}),
        **config.get("model_args", {}),
    }
    try:
        network = timm.create_model(
            name,
            pretrained=True,
            pretrained_cfg=known | {"architecture": name, "num_classes": own},
            pretrained_cfg_overlay={"state_dict": tensors},
            **architecture,
        )
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise _not_built(model, name, error) from error
    _refuse_other_weights(model, name, set(network.state_dict()) - set(tensors), network.pretrained_cfg["classifier"])
    found = network.pretrained_cfg
    size = size or found["input_size"][-1]
    return network, {
        "architecture": {"name": name, **architecture, "img_size": size},
        "image_size": size,
        "interpolation": found.get("interpolation") or "bicubic",
        "normalisation": {"scale": 255.0, "mean": list(found["mean"]), "std": list(found["std"])},
    }


def _from_transformers(
    model: PretrainedModel, reads: str, folder: Path, settings: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """As `_from_timm`; settings: those that there are already."""
    from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

    loader = AutoModelForSequenceClassification if reads == "texts" else AutoModelForImageClassification
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if not model.fine_tune and config.num_labels != model.classes:
            raise _other_classes(model, config.num_labels)
        config.num_labels = model.classes
        for key, value in config.to_dict().items():
            if "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(config, key, model.dropout)
        found = _of_texts(model, config, settings) if reads == "texts" else _of_images(model, config, folder)
        network, report = loader.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # of the head; others are refused below
            output_loading_info=True,
        )
    except InputError:
        raise
    except (OSError, RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise _not_built(model, read_json(folder / CONFIG).get("model_type", "a model"), error) from error
    other = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    inner = {key for key in other if key.startswith(f"{network.base_model_prefix}.") and ".pooler." not in key}
    _refuse_other_weights(model, config.model_type, inner if model.fine_tune else other)
    described = json.loads(config.to_json_string(use_diff=False)) | {"dtype": "float32"}
    # without the folder that it came from, and the version that read it
    own = {key: value for key, value in described.items() if not key.startswith("_") and key != "transformers_version"}
    return network, found | {"architecture": own}


def _of_texts(model: PretrainedModel, config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the padding that of the tokenizer; refuse texts that are longer, or numbered otherwise, than it reads."""
    tokenizer, origin = settings["tokenizer"], f"model.source {model.source}"
    if (tokens := vocabulary_size(tokenizer)) > config.vocab_size:
        raise InputError(f"{origin}: its tokenizer has {tokens} tokens, its table {config.vocab_size}; give another")
    positions = config.max_position_embeddings
    if "roberta" in config.model_type:
        positions -= config.pad_token_id + 1  # its positions count from there
    if model.max_length > positions:
        raise InputError(f"{origin}: max_length is {model.max_length}, but it reads {positions} tokens; lower it")
    config.pad_token_id = pad_id(tokenizer)
    return {}


def _of_images(model: PretrainedModel, config: Any, folder: Path) -> dict[str, Any]:
    """How images are prepared; refuse sizes that are not the checkpoint's."""
    origin = f"model.source {model.source}"
    for name, ours, own in (
        ("image_size", model.image_size or config.image_size, config.image_size),
        ("channels", model.channels, config.num_channels),
    ):
        if ours != own:
            raise InputError(f"{origin}: model.{name} is {ours}, but its own is {own}; set it to that")
    path = folder / "preprocessor_config.json"
    prepared = read_json(path) if path.is_file() else {}
    if not {"image_mean", "image_std"} <= set(prepared):
        raise InputError(f"{origin}: {path.name} with image_mean and image_std is missing; set data.normalisation")
    return {
        "image_size": config.image_size,
        "interpolation": RESAMPLING.get(prepared.get("resample"), "bilinear"),
        "normalisation": {"scale": 255.0, "mean": prepared["image_mean"], "std": prepared["image_std"]},
    }


def _refuse_other_weights(model: PretrainedModel, name: str, missing: set[str], head: str | None = None) -> None:
    """Raise InputError if weights are missing, but for those of the head where it is to be trained."""
    if head is not None and model.fine_tune:
        missing = {key for key in missing if not key.startswith(head)}
    if missing:
        raise InputError(
            f"model.source {model.source}: its weights are not those of a whole {name}: {len(missing)} are missing or "
            f"of another shape, such as {min(missing)}; give another checkpoint"
            + ("" if model.fine_tune else ", or set model.fine_tune to true if it has no classifier's head")
        )


def _other_classes(model: PretrainedModel, own: int) -> InputError:
    return InputError(
        f"model.source {model.source}: a classifier of {own} classes, not {model.classes}; set model.fine_tune to "
        "true, or give one of these classes"
    )


def _not_built(model: PretrainedModel, name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(
        f"model.source {model.source}: {name} cannot be built ({reason}); give a checkpoint of an architecture that "
        'has a path (docs/pipeline.md, "A pretrained model")'
    )
