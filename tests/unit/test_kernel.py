"""The one-step kernel."""

import pytest
import torch
from pydantic import ValidationError

from director.errors import InputError
from director.models.kernel import LOG_VARIANCE_RANGE, TimeEmbedding, TransitionKernel
from director.models.weights import parameter_count
from director.settings.training import Kernel


def kernel(trained=True, causal=False, **options):
    torch.manual_seed(0)
    made = TransitionKernel(12, 3, Kernel(**{"dropout": 0.0} | options), causal).double()
    if trained:  # away from the identity
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def states(batch=4, tokens=5):
    return torch.randn(batch, tokens, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("mlp_first", [False, True])
def test_the_kernel_starts_as_the_identity_with_log_variance_minus_three(mlp_first):
    made, x = TransitionKernel(12, 3, Kernel(mlp_first=mlp_first)), states().float()
    mean, log_variance = made(x, 2)
    assert torch.equal(mean, x)
    assert torch.equal(log_variance, torch.full_like(x, -3.0))


def test_parameter_count_of_the_cifar_10_configuration():
    assert parameter_count(TransitionKernel(384, 12, Kernel())) == 2_317_824


def test_one_step_number_for_all_or_one_per_row():
    made, x = kernel(), states()
    rows = made(x, torch.tensor([0, 3, 3, 6]))
    for row, t in enumerate((0, 3, 3, 6)):
        for together, alone in zip(rows, made(x[row : row + 1], t), strict=True):
            torch.testing.assert_close(together[row : row + 1], alone)
    assert (made(x, 0)[0] - made(x, 1)[0]).abs().max() > 1e-3


def test_the_order_of_the_halves_matters():
    torch.testing.assert_close(*(sum(p.sum() for p in kernel(mlp_first=first).parameters()) for first in (True, False)))
    assert (kernel(mlp_first=True)(states(), 1)[0] - kernel()(states(), 1)[0]).abs().max() > 1e-3


def test_padding_never_influences_real_tokens():
    made, x = kernel(), states()
    mask = torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
    changed = torch.where(mask[..., None], x, 100.0)
    for before, after in zip(made(x, 1, mask), made(changed, 1, mask), strict=True):
        assert torch.equal(before[mask], after[mask])
    for padded, alone in zip(made(x, 1, mask), made(x[1:2, :3], 1), strict=True):
        torch.testing.assert_close(padded[1:2, :3], alone)


def test_a_causal_kernel_never_looks_ahead():
    """As the decoder whose layers it replaces; padding on either side changes nothing."""
    made, x = kernel(causal=True), states()
    changed = torch.cat([x[:, :3], torch.full_like(x[:, 3:], 100.0)], dim=1)
    for before, after in zip(made(x, 1), made(changed, 1), strict=True):
        assert torch.equal(before[:, :3], after[:, :3]) and not torch.equal(before[:, 3:], after[:, 3:])
    for side, real in (("right", slice(0, 3)), ("left", slice(2, 5))):
        mask = torch.zeros(4, 5, dtype=torch.bool)
        mask[:, real] = True
        padded = torch.where(mask[..., None], x, 100.0)
        for together, alone in zip(made(padded, 1, mask), made(x[:, real], 1), strict=True):
            torch.testing.assert_close(together[:, real], alone, msg=side)
            assert together.isfinite().all(), side


def test_the_log_variance_is_clamped():
    made = kernel()
    with torch.no_grad():
        made.log_variance[-1].weight.mul_(1e3)
    log_variance = made(states(), 0)[1]
    assert (log_variance.min(), log_variance.max()) == LOG_VARIANCE_RANGE


def test_time_is_told_by_waves_of_period_two_pi_to_two_pi_times_ten_thousand():
    embedding = TimeEmbedding(256).double()
    with torch.no_grad():
        embedding.mlp[0].weight.copy_(torch.eye(256))
        embedding.mlp[0].bias.zero_()
    waves = []
    embedding.mlp[0].register_forward_hook(lambda module, inputs, output: waves.append(output))
    embedding(torch.tensor([0, 3]))
    cosines, sines = waves[0].chunk(2, dim=1)
    assert torch.equal(cosines[0], torch.ones(128)) and torch.equal(sines[0], torch.zeros(128))
    frequencies = 1e4 ** (-torch.arange(128).double() / 128)
    torch.testing.assert_close(torch.atan2(sines[1], cosines[1])[5:], 3 * frequencies[5:])


def test_a_kernel_without_hidden_units_is_refused():
    with pytest.raises(InputError, match=r"mlp_ratio 0\.01"):
        TransitionKernel(12, 3, Kernel(mlp_ratio=0.01))
    with pytest.raises(ValidationError, match=r"dropout\n.*less than 1 .*input_value=1\.5"):
        Kernel(dropout=1.5)


def test_dropout_acts_in_training_only_on_mean_and_variance():
    made, x = kernel(dropout=0.5), states()
    made.eval()
    rested = made(x, 1)
    torch.testing.assert_close(made(x, 1), rested, rtol=0, atol=0)
    made.train()
    for dropped, still in zip(made(x, 1), rested, strict=True):
        assert not torch.allclose(dropped, still)


def test_dropout_of_the_settings_is_behind_both_linears_and_in_both_heads():
    rates = [module.p for module in TransitionKernel(12, 3, Kernel()).modules() if isinstance(module, torch.nn.Dropout)]
    assert rates == [0.1] * 4
