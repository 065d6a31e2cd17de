"""Trajectories captured live: the path of the teacher, the same for an example in any batch."""

import pytest
import torch
from torch import nn

from director.errors import InputError
from director.models.transformers import ImageTransformer, Transformer
from director.path.residual import path_of
from director.path.trajectory import capture

COUNT = 10
SIZES = {"width": 12, "depth": 3, "heads": 3, "mlp_width": 8, "classes": 4, "dropout": 0.1}


class TokenEmbedding(nn.Module):
    """Token numbers [B, N], -1 for padding -> tokens and mask."""

    tokens = 8

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 12)

    def forward(self, numbers):
        return self.table(numbers.clamp(min=0)), numbers >= 0


class TokenTransformer(Transformer):
    """A transformer of token numbers."""

    kind = "tokens"

    @classmethod
    def embedding_of(cls, settings):
        return TokenEmbedding()


def kep(variant):
    """Kernel-eigenpair attention in the last layer."""
    return {"kind": "kep_svgp", "layers": 1, "variant": variant, "rank": 2, "multiplier": 2}


def sgpa(kernel):
    """Sparse Gaussian process attention in the last layer."""
    return {"kind": "sgpa", "layers": 1, "kernel": kernel, "inducing": 2}


@pytest.fixture(params=["images", "text", "sgpa-images", "sgpa-text"])
def teacher(request):
    """A path, and rows -> inputs of it; the inputs of the text models are ragged."""
    torch.manual_seed(0)
    of_images, of_texts = (sgpa("ard"), sgpa("exponential")) if "sgpa" in request.param else (kep("concat"), kep("sum"))
    if request.param.endswith("images"):
        model = ImageTransformer(image_size=8, channels=1, patch=4, **SIZES, attention=of_images)
        inputs = torch.randn(COUNT, 1, 8, 8)
        return path_of(model), lambda rows: inputs[rows]
    model = TokenTransformer({**SIZES, "attention": of_texts})
    numbers = torch.randint(20, (COUNT, 8))
    lengths = torch.tensor([8, 3, 1, 5, 7, 2, 2, 4, 6, 3])
    numbers[torch.arange(8) >= lengths[:, None]] = -1
    return path_of(model), lambda rows: numbers[rows, : lengths[rows].max()]


def test_a_captured_trajectory_is_the_path(teacher):
    path, inputs = teacher
    trajectory = capture(path, inputs(range(4)))
    states, mask = path.states(inputs(range(4)))
    real = torch.ones(states.shape[1:3], dtype=torch.bool) if mask is None else mask
    assert trajectory.states.shape == states.shape and len(trajectory.variances) == path.steps
    torch.testing.assert_close(trajectory.states[:, real], states[:, real])
    assert (trajectory.states[:, ~real] == 0).all() and (trajectory.variances[:, ~real] == 0).all()
    assert (trajectory.variances >= 0).all() and (trajectory.variances[2, real] > 0).all()


def test_an_example_has_the_same_trajectory_and_logits_alone_and_with_padding(teacher):
    path, inputs = teacher
    together, logits = capture(path, inputs(range(4))), path.model.eval()(inputs(range(4)))
    for row in range(4):
        alone = capture(path, inputs([row]))
        count = alone.states.shape[2]
        torch.testing.assert_close(together.states[:, row : row + 1, :count], alone.states)
        torch.testing.assert_close(together.variances[:, row : row + 1, :count], alone.variances)
        torch.testing.assert_close(path.readout(alone.states[-1], alone.mask), logits[row : row + 1])


def test_a_teacher_without_dropout_has_no_dropout_variance():
    torch.manual_seed(0)
    sizes = {"image_size": 8, "channels": 1, "patch": 4}
    images = torch.randn(2, 1, 8, 8)
    dropped = capture(path_of(ImageTransformer(**sizes, **SIZES)), images, "dropout_moments")
    assert not dropped.variances[0].any() and (dropped.variances[1:] > 0).all()
    without = path_of(ImageTransformer(**sizes, **SIZES | {"dropout": 0.0}))
    with pytest.raises(InputError, match="train the teacher with dropout, or choose attention_moments"):
        capture(without, images, "dropout_moments")
