"""Attention layers as distributions: closed forms against Monte Carlo and torch.distributions, and masks."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from director.errors import InputError
from director.models.attention import ATTENTIONS, KernelEigenpairAttention, SoftmaxAttention

WIDTH, HEADS, TOKENS, RANK = 8, 2, 6, 3


def layer(kind, multiplier=1):
    torch.manual_seed(3)
    if kind == "softmax":
        return SoftmaxAttention(WIDTH, HEADS).double()
    made = KernelEigenpairAttention(WIDTH, HEADS, TOKENS, 0.0, variant=kind, rank=RANK, multiplier=multiplier).double()
    with torch.no_grad():
        made.log_s.mul_(0.3).sub_(0.5)  # spreads of order one
    return made


def kernel_eigenpair(tokens=6, variant="concat", rank=10, multiplier=10):
    return KernelEigenpairAttention(8, 2, tokens, 0.0, variant=variant, rank=rank, multiplier=multiplier)


def tokens(batch=2, count=TOKENS):
    return torch.randn(batch, count, WIDTH, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def gaussian(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def test_softmax_equals_the_formula():
    attention, x = layer("softmax"), tokens()
    heads = [part.view(2, TOKENS, HEADS, -1) for part in (attention.q(x), attention.k(x), attention.v(x))]
    scores = torch.einsum("bihd,bjhd->bhij", *heads[:2]) / WIDTH**0.5  # the whole width, not a head's
    p = scores.softmax(dim=-1)
    mean = torch.einsum("bhij,bjhd->bihd", p, heads[2])
    spread = (heads[2][:, None] - mean[:, :, None]).square()  # [B, i, j, H, dh]
    variance = torch.einsum("bhij,bijhd->bihd", p, spread).flatten(2)
    output, penalties = attention(x)
    torch.testing.assert_close(output, attention.o(mean.flatten(2)))
    assert penalties == {}
    ours = attention.moments(x)
    torch.testing.assert_close(ours[0], output)
    torch.testing.assert_close(ours[1], variance @ attention.o.weight.square().T)


@pytest.mark.parametrize("kind", ["concat", "sum"])
@pytest.mark.parametrize("multiplier", [1, 5])  # fewer carriers than tokens, all tokens
def test_kernel_eigenpair_moments_equal_monte_carlo(kind, multiplier):
    attention, x = layer(kind, multiplier), tokens(1)
    draws = 40_000
    with torch.no_grad():
        mean, variance = attention.moments(x)
        samples, _ = attention(x.expand(draws, -1, -1), noise=gaussian(5))
        torch.testing.assert_close(attention(x)[0], mean)
    standard_error = (variance[0] / draws).sqrt()
    assert ((samples.mean(0) - mean[0]).abs() < 5 * standard_error).all()
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.05, atol=0)
    assert variance.min() > 0


def test_kernel_eigenpair_samples_share_their_draw_over_tokens():
    """Two tokens of one head covary as V1 L L' V1' says; a draw per token would leave them independent."""
    attention, x = layer("sum"), tokens(1)
    with torch.no_grad():
        samples, _ = attention(x.expand(40_000, -1, -1), noise=gaussian(6))
        e, r = attention._scores(x, None)
        features = attention._features(e, r)[0, 0]  # first head, [N, s]
        spread = torch.einsum("ni,kij,klj,ml->nmk", features, *[attention._factors()[0]] * 2, features)
        expected = spread @ attention.f.weight[0].square()  # first channel, [N, N]
    torch.testing.assert_close(torch.cov(samples[:, :, 0].T), expected, rtol=0.05, atol=0.05 * expected.max())
    assert (expected[0, 1] / (expected[0, 0] * expected[1, 1]).sqrt()).abs() > 0.1


def test_kernel_eigenpair_divergence_equals_torch_distributions():
    attention = layer("sum")
    assert attention.log_l.std() > 0.1
    expected = 0.0
    for head in range(HEADS):
        prior = MultivariateNormal(torch.zeros(RANK).double(), torch.diag(torch.exp(-4 * attention.log_l[head])))
        for k in range(RANK):
            factor = attention.lower[head, k].tril(-1) + torch.diag(attention.log_s[head, k].exp())
            posterior = MultivariateNormal(attention.m[head, :, k], scale_tril=factor)
            expected = expected + kl_divergence(posterior, prior)
    torch.testing.assert_close(attention(tokens())[1]["kl"], expected)


@pytest.mark.parametrize("kind", ["softmax", "sum"])
def test_padding_never_influences_real_tokens(kind):
    attention, x = layer(kind), tokens(3)
    mask = torch.arange(TOKENS) < torch.tensor([[6], [4], [1]])
    noise = torch.randn(3, HEADS, RANK, RANK, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def results(x, mask, noise=noise):
        output, penalties = attention(x, mask, lambda shape: noise)
        return (output, *attention.moments(x, mask)), penalties

    reference, penalties = results(x, mask)
    other = torch.where(mask[..., None], x, 1e3 * torch.ones_like(x))
    changed, changed_penalties = results(other, mask)
    for before, after in zip(reference, changed, strict=True):
        assert torch.equal(before[mask], after[mask])
    assert penalties == changed_penalties
    # nor does the amount of padding: alone and shorter
    for before, after in zip(reference, results(x[1:2, :4], mask[1:2, :4], noise[1:2])[0], strict=True):
        torch.testing.assert_close(before[1:2, :4], after)
    # an input without a real token is finite
    assert results(x, torch.zeros_like(mask))[0][0].isfinite().all()


def test_a_mask_of_real_tokens_changes_nothing():
    for kind in ("softmax", "sum"):
        attention, x = layer(kind), tokens()
        everything = torch.ones(2, TOKENS, dtype=torch.bool)
        torch.testing.assert_close(attention(x, everything)[0], attention(x)[0])
        for name, value in attention(x, everything)[1].items():
            torch.testing.assert_close(value, attention(x)[1][name])


def test_sequences_a_layer_cannot_take_are_refused():
    with pytest.raises(InputError, match="works on 6 unmasked tokens, not 5"):
        layer("concat")(tokens(count=5))
    with pytest.raises(InputError, match="not 6 with a mask"):
        layer("concat")(tokens(), torch.ones(2, TOKENS, dtype=torch.bool))
    with pytest.raises(InputError, match="7 tokens is longer than the 6"):
        layer("sum")(tokens(count=7))


@pytest.mark.parametrize(
    "make, value",
    [
        (lambda: SoftmaxAttention(10, 4), "4 heads do not divide a width of 10"),
        (lambda: kernel_eigenpair(variant="mean"), "'mean' is unknown: choose one of concat, sum"),
        (lambda: kernel_eigenpair(rank=0), "not 6, 0, 10"),
    ],
)
def test_bad_sizes_are_named(make, value):
    with pytest.raises(InputError, match=value):
        make()


def test_initial_projections_are_orthogonal():
    w_e = kernel_eigenpair(tokens=50, rank=3, multiplier=4).w_e  # [2, 12, 3]
    torch.testing.assert_close(w_e.mT @ w_e, torch.eye(3).expand(2, 3, 3))


def test_layers_say_whether_they_need_inputs_of_one_length():
    assert [layer(kind).fixed_length for kind in ("softmax", "sum", "concat")] == [False, False, True]


def test_the_table_of_attentions_makes_layers_from_their_own_settings():
    made = ATTENTIONS["kep_svgp"](WIDTH, HEADS, TOKENS, 0.5, variant="sum", rank=2, multiplier=1)
    assert isinstance(made, KernelEigenpairAttention) and made.m.shape == (HEADS, 2, 2) and made.dropout.p == 0.5
