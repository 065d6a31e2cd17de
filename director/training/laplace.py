"""A normal distribution of a trained classifier's last layer, by laplace-torch, which is an extra of this package."""

import contextlib
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from director.device import autocast, to_device
from director.errors import InputError
from director.training.predict import batches, logits_of

VALUES = 1 << 26  # of the derivatives of one piece of a batch, 256 MB


class LastLayerLaplace(nn.Module):
    """A classifier whose call gives the log of its class probabilities [B, C] under a posterior of its last layer.

    The posterior is normal around the trained weights, with the Kronecker-factored Gauss-Newton matrix over the
    training part as its precision, and the prior precision of the highest marginal likelihood; the probabilities are
    those of the linearised model by the probit approximation (MacKay, Neural Computation 1992; Kristiadi et al., ICML
    2020; Daxberger et al., NeurIPS 2021). seconds: what fitting took. prior_precision: as fitted.
    """

    kind = "laplace"

    def __init__(self, model: nn.Module, layer: nn.Linear, posterior: Any, seconds: float) -> None:
        super().__init__()
        self.model, self.settings, self.layer = model, model.settings, layer
        self.posterior, self.seconds = posterior, seconds
        self.prior_precision = float(posterior.prior_precision)

    def forward(self, inputs: Any) -> Tensor:
        features = _features(self.model, self.layer, inputs)
        size = max(1, VALUES // (self.layer.out_features * sum(part.numel() for part in self.layer.parameters())))
        with autocast(features.device, "float32"):
            parts = [self.posterior(part, pred_type="glm", link_approx="probit") for part in features.split(size)]
        return torch.cat(parts).clamp(min=torch.finfo(torch.float32).tiny).log()


def fit_last_layer(model: nn.Module, examples: Any, *, batch_size: int, device: torch.device) -> LastLayerLaplace:
    """The posterior of a model's last layer from its training examples (`director.training.predict.predict`).

    Raises InputError where the logits are not the output of one linear layer.
    """
    from laplace import Laplace

    start = time.perf_counter()
    model.to(device).eval()
    layer, features, labels = None, [], []
    with torch.no_grad():
        for rows in batches(examples, batch_size):
            arrays, of_rows = examples.batch(rows)
            inputs = to_device(arrays, device)
            layer = layer or _last_layer(model, inputs)
            features.append(_features(model, layer, inputs))
            labels.append(torch.from_numpy(of_rows).to(device))
    data = DataLoader(TensorDataset(torch.cat(features), torch.cat(labels)), batch_size)
    posterior = Laplace(nn.Sequential(layer), "classification", "last_layer", "kron", last_layer_name="0")
    posterior.fit(data)
    posterior.optimize_prior_precision(pred_type="glm", method="marglik", link_approx="probit")
    return LastLayerLaplace(model, layer, posterior, time.perf_counter() - start)


def _features(model: nn.Module, layer: nn.Linear, inputs: Any) -> Tensor:
    """What the last layer reads, float32 [B, d]."""
    read: list[Tensor] = []
    with layer.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0])):
        logits_of(model, inputs)
    return read[-1].float()


def _last_layer(model: nn.Module, inputs: Any) -> nn.Linear:
    """The linear layer whose output the logits are."""
    outputs: dict[nn.Linear, Tensor] = {}

    def keep(module: nn.Linear, inputs: Any, output: Tensor) -> None:
        outputs[module] = output

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                hooks.enter_context(module.register_forward_hook(keep))
        logits = logits_of(model, inputs)
    for layer, output in outputs.items():
        if output.shape == logits.shape and torch.equal(output, logits):
            return layer
    raise InputError(
        f"laplace: the logits of {type(getattr(model, 'network', model)).__name__} are not the output of one linear "
        "layer, which this row puts a distribution on; leave the row out"
    )
