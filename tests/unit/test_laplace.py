"""A Laplace approximation of the last layer, against laplace-torch on the whole model and a large sample."""

import os

import numpy as np
import pytest
import torch
from builders import NORMALISATION, random_images, random_model
from torch import nn
from torch.utils.data import DataLoader

from director.data.examples import ImageExamples
from director.errors import InputError
from director.training import laplace as module
from director.training.laplace import fit_last_layer
from director.training.predict import predict

if os.environ.get("CI"):
    import laplace  # `make laplace`: there it has to be
else:
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed (make laplace)")

CPU = torch.device("cpu")


@pytest.fixture
def examples():
    return ImageExamples(random_images(40), NORMALISATION)


@pytest.fixture
def fitted(examples):
    return fit_last_layer(random_model(), examples, batch_size=16, device=CPU)


def test_the_probabilities_are_those_of_the_library_on_the_whole_model(examples, fitted):
    images, labels = examples.batch(np.arange(40))
    loader = DataLoader(list(zip(torch.from_numpy(images), torch.from_numpy(labels), strict=True)), batch_size=16)
    whole = laplace.Laplace(random_model().eval(), "classification", "last_layer", "kron")
    whole.fit(loader)
    whole.optimize_prior_precision(pred_type="glm", method="marglik", link_approx="probit")
    expected = whole(torch.from_numpy(images), pred_type="glm", link_approx="probit")
    probabilities = np.exp(predict(fitted, examples).logits[0])
    np.testing.assert_allclose(probabilities, expected.detach().numpy(), atol=1e-6)
    assert fitted.prior_precision == pytest.approx(float(whole.prior_precision), rel=1e-5)


def test_it_is_less_sure_than_its_model_and_says_the_same(examples, fitted):
    own = torch.from_numpy(predict(random_model(), examples).logits[0]).softmax(-1).numpy()
    probabilities = np.exp(predict(fitted, examples).logits[0])
    assert (probabilities.max(-1) < own.max(-1)).all()


def test_neither_batches_nor_pieces_of_them_matter(examples, fitted, monkeypatch):
    expected = predict(fitted, examples, batch_size=40).logits
    monkeypatch.setattr(module, "VALUES", 1)
    np.testing.assert_allclose(predict(fitted, examples, batch_size=7).logits, expected, atol=1e-5)


class Squashed(nn.Module):
    """A readout with something after its linear layer."""

    def __init__(self, readout):
        super().__init__()
        self.readout = readout

    def forward(self, x, mask=None):
        return torch.tanh(self.readout(x, mask))


def test_a_model_without_a_last_linear_layer_is_refused(examples):
    model = random_model()
    model.readout = Squashed(model.readout)
    with pytest.raises(InputError, match="not the output of one linear layer"):
        fit_last_layer(model, examples, batch_size=16, device=CPU)
