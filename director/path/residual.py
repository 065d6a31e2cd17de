"""The path of a teacher: the L+1 states of its residual stream that DIRECTOR learns (arXiv 2602.08920).

    X[0] = token + position embedding      X[l] = state after the attention residual of layer l, l = 1..L

Segment l goes from X[l-1] to X[l] and ends with attention; the readout goes from X[L] to the logits.

One class per family of architectures, found by the model's class (`path_of`). A new family is a subclass of
`ResidualPath`, or of `SoftmaxPath`, with its parts, entered in PATHS.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from director.errors import InputError
from director.models.attention import SoftmaxAttention
from director.models.kernel import TransitionKernel
from director.models.pretrained import PretrainedClassifier
from director.models.student import StudentNetwork
from director.models.transformers import PathReadout, Transformer
from director.path.partial import PartialPath, default_last
from director.path.timm_models import VisionTransformerPath
from director.path.transformers_models import BertPath, DecoderPath, Dinov2Path, DistilBertPath, VitPath
from director.path.view import ResidualPath, class_name, trainable_copy
from director.settings.training import Kernel

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of `check_path`


class TransformerPath(ResidualPath):
    """The path of this project's own transformers."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.steps = len(model.blocks)
        self.backbone = {"kind": model.kind, "settings": model.settings}
        self.width, self.heads = (model.settings[name] for name in ("width", "heads"))

    def student_parts(self) -> tuple[nn.Module, nn.Module]:
        embedding, readout = self.model.embedding, PathReadout(self.model.blocks[-1].mlp_half, self.model.readout)
        return trainable_copy(embedding), trainable_copy(readout)

    def _embed(self, inputs):
        return self.model.embedding(inputs)

    def _open(self, step, x, mask):
        return x if step == 1 else self.model.blocks[step - 2].mlp_half(x)

    def _attend(self, step, x, mask):
        return self.model.blocks[step - 1].attention_half(x, mask)[0]

    def _moments(self, step, x, mask):
        return self.model.blocks[step - 1].attention_half.moments(x, mask)

    def _is_softmax(self, step):
        return isinstance(self.model.blocks[step - 1].attention_half.attention, SoftmaxAttention)

    def _readout(self, x, mask):
        return self.model.readout(self.model.blocks[-1].mlp_half(x), mask)


class PretrainedPath(PartialPath):
    """The part of a pretrained classifier's path that its student replaces, for inputs as this project has them."""

    def __init__(self, model: PretrainedClassifier) -> None:
        """Replaces `last` layers as its settings say, a third where they say nothing, in steps of `states_every`."""
        path, every = path_of(model.network), model.settings["states_every"]
        super().__init__(path, model.settings["last"] or default_last(path.steps, every), every)
        self.prepare = model.prepare
        self.backbone = {"kind": model.kind, "settings": model.settings}

    def student_parts(self) -> tuple[nn.Module, nn.Module]:
        embedding, readout = super().student_parts()
        return embedding if self.kept else nn.Sequential(self.prepare, embedding), readout

    def _embed(self, inputs):
        return super()._embed(self.prepare(inputs))

    def _logits(self, inputs):
        return super()._logits(self.prepare(inputs))


# class of a model -> class of its path. Names, so that no library is imported before there is a model of it.
PATHS: dict[str, type[ResidualPath]] = {
    class_name(Transformer): TransformerPath,
    class_name(PretrainedClassifier): PretrainedPath,
    "timm.models.vision_transformer.VisionTransformer": VisionTransformerPath,  # and DeiT's, which inherits from it
    "transformers.models.bert.modeling_bert.BertForSequenceClassification": BertPath,
    "transformers.models.roberta.modeling_roberta.RobertaForSequenceClassification": BertPath,
    "transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaForSequenceClassification": BertPath,
    "transformers.models.distilbert.modeling_distilbert.DistilBertForSequenceClassification": DistilBertPath,
    "transformers.models.vit.modeling_vit.ViTForImageClassification": VitPath,
    "transformers.models.dinov2.modeling_dinov2.Dinov2ForImageClassification": Dinov2Path,
    "transformers.models.llama.modeling_llama.LlamaForSequenceClassification": DecoderPath,
    "transformers.models.qwen2.modeling_qwen2.Qwen2ForSequenceClassification": DecoderPath,
}


def path_of(model: nn.Module) -> ResidualPath:
    """The path of a model; raises `InputError` naming the class of an architecture without one, and those with one.

    A subclass is taken to compute what its parent does; `check_path` says whether it does.
    """
    for model_class in type(model).__mro__:
        if class_name(model_class) in PATHS:
            return PATHS[class_name(model_class)](model)
    known = get_close_matches(class_name(model), PATHS, n=len(PATHS), cutoff=0.0)
    raise InputError(
        f"{class_name(model)} has no residual path here; known, the nearest first: {', '.join(known)}. "
        "Give your own view of it as path= (docs/your-own-model.md)"
    )


@dataclass(frozen=True)
class PathSizes:
    """Of a path that was checked: L+1 states [B, tokens, width], logits [B, classes].

    masked: whether some of the tokens may be padding.
    """

    states: int
    tokens: int
    width: int
    masked: bool
    classes: int


def check_path(path: ResidualPath, inputs: Any) -> PathSizes:
    """Walk one batch through the path; raises `InputError` where its end does not give the model's own logits.

    The greatest difference counts, over the greatest logit: 1e-5 in float32, 1e-10 in float64.
    """
    states, mask = path.states(inputs)
    logits, own = path.readout(states[-1], mask), path.logits(inputs)
    name = class_name(path.model)
    if logits.shape != own.shape or own.ndim != 2:
        raise InputError(
            f"the path of {name} gives logits {tuple(logits.shape)}, the model {tuple(own.shape)}: "
            "it is not the classifier that it was taken for"
        )
    difference = ((logits - own).abs().max() / own.abs().max().clamp(min=torch.finfo(own.dtype).tiny)).item()
    if not difference <= TOLERANCE[own.dtype]:  # nor where it is not a number
        raise InputError(
            f"the path of {name} gives logits that differ from the model's own by {difference:.2g} of the greatest, "
            f"more than {TOLERANCE[own.dtype]:.0e} in {own.dtype}: "
            "the model computes something else than its class does"
        )
    _, _, tokens, width = states.shape
    return PathSizes(len(states), tokens, width, mask is not None, own.shape[1])


def student_of(path: ResidualPath, kernel: Kernel) -> StudentNetwork:
    """A student that starts as the teacher's embedding and readout, copied, around steps that change nothing.

    It can be saved where the teacher can: `path.backbone`.
    """
    embedding, readout = path.student_parts()
    parameter = next(readout.parameters())  # the kernel lies beside the teacher, wherever that is
    transition = TransitionKernel(path.width, path.heads, kernel, path.causal).to(parameter.device, parameter.dtype)
    settings = None
    if path.backbone is not None:
        settings = {
            "backbone": dict(path.backbone),
            "steps": path.steps,
            "width": path.width,
            "heads": path.heads,
            "kernel": kernel.model_dump(),
        }
    return StudentNetwork(embedding, transition, readout, path.steps, settings)
