"""Attention against the published code's numbers (float64, noise zero)."""

import numpy as np
import pytest
import torch

from director.models.attention import KernelEigenpairAttention, SparseGaussianProcessAttention

# Published parameter names, and what they are called here.
NAMES = {
    "we": "w_e",
    "wr": "w_r",
    "log_lambda_sqrt_inv_diag": "log_l",
    "m_u": "m",
    "log_ssqrt": "log_s",
    "s_sqrt_low_triangle": "lower",
    "qk.weight": "qk.weight",
    "final_weight.weight": "f.weight",
    "final_weight.bias": "f.bias",
    "embed_len_weight.weight": "mix.weight",
    "embed_len_weight.bias": "mix.bias",
}
FILES = ["concat_equal", "concat_free", "sum_equal", "sum_free", "sum_masked"]


def published(shared, name):
    """The published arrays, and our layer with their weights."""
    arrays = np.load(shared / "golden" / f"kep_{name}.npz")
    arrays = {key: torch.from_numpy(arrays[key]) for key in arrays}
    layer = KernelEigenpairAttention(
        width=arrays["x"].shape[2],
        heads=4,
        tokens=arrays["x"].shape[1],
        dropout=0.0,
        variant=name.split("_")[0],
        rank=5,
        multiplier=2,
    ).double()
    weights = {NAMES[key[6:]]: value for key, value in arrays.items() if key.startswith("param.")}
    for key in ("m", "log_s", "lower"):  # stored with an axis of length one in front
        weights[key] = weights[key][0]
    layer.load_state_dict(weights)
    return arrays, layer


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FILES[:4])
def test_kernel_eigenpair_mean_and_penalties(shared, name):
    arrays, layer = published(shared, name)
    output, penalties = layer(arrays["x"])
    close(output, arrays["mean"])
    close(layer.moments(arrays["x"])[0], arrays["mean"])
    close(penalties["ksvd"], arrays["ksvd_loss"])
    if "kl" in arrays:
        close(penalties["kl"], arrays["kl"])


@pytest.mark.parametrize("name", FILES[:4])
def test_kernel_eigenpair_scores(shared, name):
    arrays, layer = published(shared, name)
    e, r = layer._scores(arrays["x"], None)
    close(e, arrays["escore"])
    close(r, arrays["rscore"])


def test_kernel_eigenpair_with_padding(shared):
    """The published code lets padding into the projections w_e, w_r, so that only where there is none it equals ours.

    Its real tokens are those of a layer that sees the padding as real tokens.
    """
    arrays, layer = published(shared, "sum_masked")
    x, real = arrays["x"], arrays["mask"][..., 0].bool()
    close(layer(x)[0][real], arrays["mean"][real])
    e, r = layer._scores(x, None)
    close(e.transpose(1, 2)[real], arrays["escore"].transpose(1, 2)[real])
    close(r.transpose(1, 2)[real], arrays["rscore"].transpose(1, 2)[real])
    assert real[0].all() and not real[1].all()
    masked = layer(x, real)[0]
    close(masked[0], arrays["mean"][0])
    assert (masked[1] - arrays["mean"][1])[real[1]].abs().max() > 1e-3


def published_sgpa(shared, name):
    """The published arrays, and our layer with their weights.

    The published code reads the rows of its one weight [2d, d] as [H, 2, dh] for the queries and values of tokens, but
    the first d of them as [H, dh] for the queries of inducing inputs, which so go through maps of other heads and of
    values, too. They enter through these queries alone: ours are the inducing inputs whose own queries are the same.
    """
    arrays = np.load(shared / "golden" / f"sgpa_{name}.npz")
    arrays = {key: torch.from_numpy(arrays[key]) for key in arrays}
    inducing, weight = arrays["inducing"][:, 0], arrays["param.fc_qkv.weight"]  # [H, M, d], [2d, d]
    heads, count, width = inducing.shape
    queries, values = weight.unflatten(0, (heads, 2, -1)).unbind(1)  # [H, dh, d] each
    k_b = inducing @ weight[:width].unflatten(0, (heads, -1)).mT  # [H, M, dh]
    layer = SparseGaussianProcessAttention(
        width, heads, tokens=arrays["x"].shape[1], dropout=0.0, kernel=name, inducing=count
    ).double()
    layer.load_state_dict(
        {
            "q.weight": queries.flatten(0, 1),
            "v.weight": values.flatten(0, 1),
            "o.weight": arrays["param.W_O.0.weight"],
            "o.bias": arrays["param.W_O.0.bias"],
            "log_sf": arrays["param.log_sf"][:, 0],
            "log_ls": arrays["param.log_ls"],
            "z": k_b @ torch.linalg.pinv(queries).mT,
            # stored with an axis of length one behind the heads
            "v_b": arrays["param.v"][:, 0],
            "log_s": arrays["param.log_s_sqrt_diag"][:, 0],
            "lower": arrays["param.s_sqrt_ltri"][:, 0],
        }
    )
    return arrays, layer


@pytest.mark.parametrize("name", ["ard", "exponential"])
def test_sparse_gaussian_process_mean_deviation_and_divergence(shared, name):
    arrays, layer = published_sgpa(shared, name)
    output, penalties = layer(arrays["x"])
    close(output, arrays["mean"])
    close(penalties["kl"], arrays["kl"])
    mean, variance = layer.moments(arrays["x"])
    close(mean, arrays["mean"])
    close(variance, arrays["head_std_concat"].square() @ layer.o.weight.square().T)
    with torch.no_grad():  # without the output map: the standard deviation of the concatenated heads itself
        layer.o.weight.copy_(torch.eye(len(layer.o.weight)))
    close(layer.moments(arrays["x"])[1].sqrt(), arrays["head_std_concat"])


@pytest.mark.parametrize("name", ["ard", "exponential"])
def test_sparse_gaussian_process_samples_have_the_published_deviation(shared, name):
    """A draw of ones is one standard deviation above the mean, in every channel of the heads."""
    arrays, layer = published_sgpa(shared, name)
    sample, _ = layer(arrays["x"], noise=lambda shape, mask: torch.ones(shape))
    close(sample - arrays["mean"], arrays["head_std_concat"] @ layer.o.weight.T)
