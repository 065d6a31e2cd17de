"""Attention layers as distributions: closed forms against Monte Carlo and torch.distributions, and masks."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from director.errors import InputError
from director.models.attention import (
    ATTENTIONS,
    JITTER,
    KernelEigenpairAttention,
    SoftmaxAttention,
    SparseGaussianProcessAttention,
    _cholesky,
)
from director.noise import ExampleNoise, fold, unfold

WIDTH, HEADS, TOKENS, RANK = 8, 2, 6, 3
INDUCING = 3
KERNELS = ["ard", "exponential"]


def layer(kind, multiplier=1):
    torch.manual_seed(3)
    if kind == "softmax":
        return SoftmaxAttention(WIDTH, HEADS).double()
    if kind in KERNELS:
        return sparse_gp(kind)
    made = KernelEigenpairAttention(WIDTH, HEADS, TOKENS, 0.0, variant=kind, rank=RANK, multiplier=multiplier).double()
    with torch.no_grad():
        made.log_s.mul_(0.3).sub_(0.5)  # spreads of order one
    return made


def sparse_gp(kernel="ard", inducing=INDUCING, tokens=TOKENS):
    """Away from its start, where q is the prior."""
    torch.manual_seed(3)
    made = SparseGaussianProcessAttention(WIDTH, HEADS, tokens, 0.0, kernel=kernel, inducing=inducing).double()
    with torch.no_grad():
        for parameter in (made.log_sf, made.log_ls, made.v_b, made.log_s, made.lower):
            parameter.add_(0.3 * torch.randn_like(parameter))
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


@pytest.mark.parametrize("kind", ["softmax", "sum", *KERNELS])
def test_padding_never_influences_real_tokens(kind):
    attention, x = layer(kind), tokens(3)
    mask = torch.arange(TOKENS) < torch.tensor([[6], [4], [1]])
    shape = (3, TOKENS, WIDTH) if kind in KERNELS else (3, HEADS, RANK, RANK)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def results(x, mask, noise=noise):
        output, penalties = attention(x, mask, lambda shape, *mask: noise[:, : shape[1]])
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
    for kind in ("softmax", "sum", *KERNELS):
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
        (lambda: sparse_gp("linear"), "kernel 'linear' is unknown: choose one of ard, exponential"),
        (lambda: sparse_gp(inducing=0), "inducing must be >= 1, not 6, 0"),
    ],
)
def test_bad_sizes_are_named(make, value):
    with pytest.raises(InputError, match=value):
        make()


def test_initial_projections_are_orthogonal():
    w_e = kernel_eigenpair(tokens=50, rank=3, multiplier=4).w_e  # [2, 12, 3]
    torch.testing.assert_close(w_e.mT @ w_e, torch.eye(3).expand(2, 3, 3))


def test_layers_say_whether_they_need_inputs_of_one_length():
    kinds = ("softmax", "sum", *KERNELS, "concat")
    assert [layer(kind).fixed_length for kind in kinds] == [False, False, False, False, True]


def test_the_table_of_attentions_makes_layers_from_their_own_settings():
    made = ATTENTIONS["kep_svgp"](WIDTH, HEADS, TOKENS, 0.5, variant="sum", rank=2, multiplier=1)
    assert isinstance(made, KernelEigenpairAttention) and made.m.shape == (HEADS, 2, 2) and made.dropout.p == 0.5
    made = ATTENTIONS["sgpa"](WIDTH, HEADS, TOKENS, 0.5, kernel="exponential", inducing=2)
    assert isinstance(made, SparseGaussianProcessAttention) and made.z.shape == (HEADS, 2, WIDTH)
    assert made.kernel == "exponential" and made.dropout.p == 0.5


def kernel_matrix(attention, head, a, b):
    """The kernel of one head, written out."""
    lengths = attention.log_ls[head].exp()
    a, b = a[:, None] / lengths, b[None] / lengths
    exponent = (a * b).sum(-1) if attention.kernel == "exponential" else -0.5 * (a - b).square().sum(-1)
    return attention.log_sf[head].exp() * exponent.exp()


def processes(attention, x):
    """q and p of every head and channel, jointly at inducing points and tokens of one input [N, d], as dense Gaussians.

    q(u) = N(K_bb v_b, C S S' C'); given u, the tokens are N(K_qb K_bb^{-1} u + D v_g, D) under q and
    N(K_qb K_bb^{-1} u, D) under p, with D = K_qq - K_qb K_bb^{-1} K_bq. Gives [(q, p), ...], head by head.
    """
    channels = WIDTH // HEADS
    made = []
    for head in range(HEADS):
        rows = slice(head * channels, (head + 1) * channels)
        q, v_g = x @ attention.q.weight[rows].T, x @ attention.v.weight[rows].T
        k_b = attention.z[head] @ attention.q.weight[rows].T
        k_bb = kernel_matrix(attention, head, k_b, k_b) + JITTER * torch.eye(len(k_b)).double()
        k_qb, k_qq = kernel_matrix(attention, head, q, k_b), kernel_matrix(attention, head, q, q)
        weights = k_qb @ torch.linalg.inv(k_bb)  # [N, M]
        rest = k_qq - weights @ k_qb.T  # D
        prior = torch.cat([torch.cat([k_bb, k_qb.T], 1), torch.cat([k_qb, k_qq], 1)])
        for c in range(channels):
            factor = torch.linalg.cholesky(k_bb) @ attention._factors()[head, c]
            u, covariance = k_bb @ attention.v_b[head, :, c], factor @ factor.T
            mean = torch.cat([u, weights @ u + rest @ v_g[:, c]])
            cross = weights @ covariance  # [N, M]
            tokens = rest + cross @ weights.T
            joint = torch.cat([torch.cat([covariance, cross.T], 1), torch.cat([cross, tokens], 1)])
            made.append((MultivariateNormal(mean, joint), MultivariateNormal(torch.zeros_like(mean), prior)))
    return made


@pytest.mark.parametrize("kernel", KERNELS)
def test_sparse_gaussian_process_equals_the_dense_gaussians(kernel):
    attention, x = sparse_gp(kernel), tokens(2)
    with torch.no_grad():
        pairs = [processes(attention, row) for row in x]
        mean, deviation = (
            torch.stack([torch.stack([values(q)[INDUCING:] for q, _ in row], 1) for row in pairs])
            for values in (lambda q: q.mean, lambda q: q.variance.sqrt())
        )  # [B, N, d]
        divergence = torch.stack([sum(kl_divergence(q, p) for q, p in row) for row in pairs]).mean()
        output, penalties = attention(x)
        tolerance = {"rtol": 1e-4, "atol": 1e-5}  # the published KL leaves the jitter out of v_b' K_bb v_b
        torch.testing.assert_close(output, attention.o(mean), **tolerance)
        torch.testing.assert_close(penalties["kl"], divergence, **tolerance)
        variance = attention.moments(x)[1]
        torch.testing.assert_close(variance, deviation.square() @ attention.o.weight.square().T, **tolerance)
        sample, _ = attention(x, noise=lambda shape, mask: torch.ones(shape))
        torch.testing.assert_close(sample - output, deviation @ attention.o.weight.T, **tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sparse_gaussian_process_moments_equal_monte_carlo(kernel):
    attention, x = sparse_gp(kernel), tokens(1)
    draws = 40_000
    noise = gaussian(5)
    with torch.no_grad():
        mean, variance = attention.moments(x)
        samples, _ = attention(x.expand(draws, -1, -1), noise=lambda shape, mask: noise(shape))
        torch.testing.assert_close(attention(x)[0], mean)
    standard_error = (variance[0] / draws).sqrt()
    assert ((samples.mean(0) - mean[0]).abs() < 5 * standard_error).all()
    torch.testing.assert_close(samples.var(0), variance[0], rtol=0.05, atol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sparse_gaussian_process_starts_as_the_prior_and_on_the_scale_of_softmax(kernel):
    attention, x = (
        SparseGaussianProcessAttention(WIDTH, HEADS, TOKENS, 0.0, kernel=kernel, inducing=2).double(),
        tokens(),
    )
    q = attention.q(x).unflatten(-1, (HEADS, -1))[:, :, 0]  # of the first head, [B, N, dh]
    with torch.no_grad():
        attention.o.weight.copy_(torch.eye(WIDTH))
        attention.v.weight.zero_()
    _, variance = attention.moments(x)
    exponent = (
        q.square().sum(-1) / (WIDTH // HEADS) ** 0.5 if kernel == "exponential" else torch.zeros(2, TOKENS).double()
    )
    torch.testing.assert_close(variance[..., 0], exponent.exp() / TOKENS)
    torch.testing.assert_close(attention(x)[1]["kl"], torch.tensor(0.0).double())


def test_inducing_points_that_coincide_get_jitter():
    attention, x = sparse_gp(inducing=4), tokens()
    with torch.no_grad():
        attention.z[:, 1:] = attention.z[:, :1]
        attention.z[:, 3] += 1e-9
    for dtype in (torch.float64, torch.float32):
        mean, variance = attention.to(dtype).moments(x.to(dtype))
        assert mean.isfinite().all() and variance.isfinite().all() and variance.min() > 0


def test_jitter_grows_tenfold_until_a_matrix_can_be_factorised():
    bent = torch.diag(torch.tensor([1.0, 2.0, -3e-4])).double().expand(2, 3, 3)
    factors = _cholesky(bent)
    torch.testing.assert_close(factors @ factors.mT, bent + 1e-3 * torch.eye(3).double())
    sound = torch.eye(3).double()[None]
    torch.testing.assert_close(_cholesky(sound), (1 + JITTER) ** 0.5 * sound, rtol=1e-12, atol=0)
    assert _cholesky(torch.full((1, 2, 2), torch.nan)).isnan().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_variance_of_nothing_has_finite_gradients(kernel):
    """Certain inducing variables at the tokens themselves: rounding leaves variances on either side of zero."""
    attention = sparse_gp(kernel, inducing=TOKENS).float()
    x = tokens().float()
    with torch.no_grad():
        attention.z.copy_(x[0].expand(HEADS, -1, -1))
        attention.log_sf.fill_(8.0)  # whose rounding exceeds the jitter
        attention.log_s.fill_(-40.0)
        attention.lower.zero_()
    output, penalties = attention(x, noise=lambda shape, mask: torch.ones(shape))
    (output.square().sum() + penalties["kl"]).backward()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    variance = attention.moments(x)[1]
    assert (variance > 0).all() and variance[0].max() < 1e-3 * variance[1].max()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sparse_gaussian_process_keeps_its_precision_under_autocast(kernel):
    attention, x = sparse_gp(kernel).float(), tokens().float()
    attention.o.weight.requires_grad_(False).copy_(torch.eye(WIDTH))
    expected = attention(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, penalties = attention(x)
    assert output.dtype == torch.bfloat16  # of the output map, which is a matrix product as any other
    torch.testing.assert_close(penalties, expected[1])
    torch.testing.assert_close(output.float(), expected[0], rtol=2e-2, atol=2e-2)


def test_a_texts_noise_in_a_sparse_gaussian_process_is_that_of_its_own_tokens():
    attention, x = sparse_gp().float(), tokens(2).float()
    mask = torch.arange(TOKENS) < torch.tensor([[6], [4]])

    def samples(x, mask, examples):
        noise = ExampleNoise(0, examples, 3)
        return unfold(attention(fold(x, 3), fold(mask, 3), lambda shape, mask: noise(0, shape, mask))[0], 3)

    together = samples(x, mask, [7, 8])
    alone = samples(x[1:, :4], mask[1:, :4], [8])
    torch.testing.assert_close(together[:, 1:, :4], alone)
    assert together.std(0)[mask].min() > 1e-4
