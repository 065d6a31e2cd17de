"""Attention layers that are also distributions: one signature, each gives its mean, its variance and a sample.

`layer(x, mask, noise) -> (output, penalties)` and `layer.moments(x, mask) -> (mean, variance)`, with
x [B, N, d], mask [B, N] (True = real token; padding never influences real tokens; None: all real),
noise a callable `(shape, mask) -> tensor` for one sample per row of the batch, the mask where the shape has a token
axis (`director.noise.Noise`; None: the mean), and penalties the scalars that the layer's own training objective adds,
by name. Output, mean and variance come after the output maps and
before the residual; the variance is the marginal one, >= 0, of each element. `layer.fixed_length` says whether every
input must have one and the same number of tokens, none of them padding.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from director.errors import InputError

VARIANTS = ("concat", "sum")
KERNELS = ("ard", "exponential")
JITTER = 1e-6  # added to the diagonal of a kernel matrix, ten times as much while it cannot be factorised
JITTERS = 12  # at most so often

Draw = Callable[..., Tensor]
Penalties = dict[str, Tensor]


def check_heads(width: int, heads: int) -> None:
    """Raise `InputError` unless `heads` equal heads fill `width`."""
    if heads < 1 or width < 1 or width % heads:
        raise InputError(f"{heads} heads do not divide a width of {width}: choose heads that do")


def causal_mask(tokens: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Which keys a query may attend to where none looks ahead: bool [N, N], or [B, 1, N, N] with a mask [B, N].

    A padding token sees itself: before the first real one it would see nothing, and its state be undefined.
    """
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
    if mask is None:
        return causal
    return causal & mask[:, None, None, :] | torch.eye(tokens, dtype=torch.bool, device=device)


def softmax_mean(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, output: nn.Linear
) -> Tensor:
    """Multi-head softmax attention [B, N, d]; arguments as in `softmax_moments`."""
    return output(_merge(F.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)))


def softmax_moments(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, output: nn.Linear
) -> tuple[Tensor, Tensor]:
    """Mean and variance [B, N, d] of softmax attention, each row p_i a categorical law over the values.

    The mean is what the layer gives. The variance is sum_j p_ij v_j^2 - (sum_j p_ij v_j)^2 of each head, the heads side
    by side, taken through the output map with squared weights. queries, keys, values: [B, H, N, dh]. mask: bool (True =
    may be attended to) or a bias of the scores, that fits [B, H, N, N]; None: all. output: H dh -> d.
    """
    # One fused call for each is faster than a single one with wider values, which has no fused kernel.
    mean, mean_square = (
        F.scaled_dot_product_attention(queries, keys, moment, mask, scale=scale) for moment in (values, values.square())
    )
    variance = (mean_square - mean.square()).clamp(min=0)  # rounding may leave a negative zero
    return output(_merge(mean)), F.linear(_merge(variance), output.weight.square())


class SoftmaxAttention(nn.Module):
    """Multi-head attention; its scale is 1/sqrt(d), of the whole width, in DIRECTOR's backbones (arXiv 2602.08920).

    It has no randomness of its own: noise does not matter, and its variance is that of `softmax_moments`. causal: no
    token attends to those behind it.
    """

    fixed_length = False

    def __init__(self, width: int, heads: int, scale: float | None = None, causal: bool = False) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.causal = heads, causal
        self.scale = width**-0.5 if scale is None else scale
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None, noise: Draw | None = None) -> tuple[Tensor, Penalties]:
        """Output [B, N, d]; no penalties."""
        return softmax_mean(*self._parts(x, mask)), {}

    def moments(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean (the output) and variance, both [B, N, d]."""
        return softmax_moments(*self._parts(x, mask))

    def _parts(self, x: Tensor, mask: Tensor | None) -> tuple:
        """Arguments of `softmax_moments`."""
        # In this order the gradients of x are summed, and by their rounding the numbers in docs/results.md were made.
        values, queries, keys = (split_heads(linear(x), self.heads) for linear in (self.v, self.q, self.k))
        allowed = None if mask is None else mask[:, None, None, :]  # [B, 1, 1, N]
        if self.causal:
            allowed = causal_mask(x.shape[1], mask, x.device)
        return queries, keys, values, allowed, self.scale, self.o


class KernelEigenpairAttention(nn.Module):
    """KEP-SVGP attention: a sparse variational GP on the singular vectors of the attention kernel.

    Chen, Tao, Tonin, Suykens, "Self-Attention through Kernel-Eigen Pair Sparse Variational Gaussian Processes",
    ICML 2024. Per head, with singular features V1 [N', s] of the tokens, output latent k is f_k = V1 u_k with
    q(u_k) = N(m_k, L_k L_k') and prior N(0, Lambda^2); one draw of u is shared by all tokens of an input.

    tokens: sequence length N; the only one for `concat` (which mixes 2N features to N tokens), the largest one for
    `sum`. rank: s, latents per head. multiplier: s * multiplier tokens at even positions carry the projections w_e,
    w_r (all tokens of a shorter sequence). dropout: rate behind the output.
    """

    def __init__(
        self, width: int, heads: int, tokens: int, dropout: float, *, variant: str, rank: int, multiplier: int
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        if variant not in VARIANTS:
            raise InputError(f"kernel-eigenpair variant {variant!r} is unknown: choose one of {', '.join(VARIANTS)}")
        if min(tokens, rank, multiplier) < 1:
            raise InputError(f"tokens, rank and multiplier must be >= 1, not {tokens}, {rank}, {multiplier}")
        self.heads, self.tokens = heads, tokens
        count = min(tokens, rank * multiplier)
        self.carriers = [i * (tokens - 1) // max(count - 1, 1) for i in range(count)]  # positions
        self.qk = nn.Linear(width, 2 * width, bias=False)
        self.w_e, self.w_r = (_orthogonal(heads, count, rank) for _ in range(2))  # [H, carriers, s]
        self.log_l = nn.Parameter(torch.rand(heads, rank))  # Lambda^{-1/2} = diag(exp(log_l))
        self.m = nn.Parameter(torch.randn(heads, rank, rank))  # column k is m_k
        self.log_s = nn.Parameter(torch.randn(heads, rank, rank))  # row k is the log diagonal of L_k
        self.lower = nn.Parameter(torch.randn(heads, rank, rank, rank))  # [H, k, s, s], strictly lower part used
        self.f = nn.Linear(rank, width // heads)  # F: latents to the head's channels
        self.mix = nn.Linear(2 * tokens, tokens) if variant == "concat" else None  # E: features of 2N to N tokens
        self.dropout = nn.Dropout(dropout)

    @property
    def fixed_length(self) -> bool:
        """Whether every input must have exactly `tokens` tokens, none of them padding."""
        return self.mix is not None

    def forward(self, x: Tensor, mask: Tensor | None = None, noise: Draw | None = None) -> tuple[Tensor, Penalties]:
        """Output [B, N, d]; penalties `ksvd` (J^2) and `kl` (not divided by the data size).

        noise draws [B, H, s (latent k), s].
        """
        e, r = self._scores(x, mask)
        u = self.m  # [H, s, s]
        if noise is not None:
            eps = noise((len(x), *u.shape)).to(u.dtype)
            u = u + torch.einsum("hkij,bhkj->bhik", self._factors(), eps)  # [B, H, s, s], column k is u_k
        latents = self.f(self._features(e, r) @ u)  # [B, H, N', dh]
        output = latents if self.mix is None else self.mix(latents.mT).mT  # [B, H, N, dh]
        return self.dropout(_merge(output)), {"ksvd": self._ksvd_loss(e, r, mask), "kl": self._divergence()}

    def moments(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and marginal variance over q(u), both [B, N, d]."""
        features = self._features(*self._scores(x, mask))
        mean = self.f(features @ self.m)  # [B, H, N', dh]
        if self.mix is not None:
            mean, features = self.mix(mean.mT).mT, self.mix.weight @ features  # [B, H, N, .]
        spread = torch.einsum("bhni,hkij->bhnkj", features, self._factors()).square().sum(-1)  # [B, H, N, k]
        return _merge(mean), _merge(F.linear(spread, self.f.weight.square()))

    def _scores(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Projections e, r [B, H, N, s] of queries and keys on the right and left singular directions."""
        count = x.shape[1]
        if self.fixed_length and (mask is not None or count != self.tokens):
            raise InputError(
                f"kernel-eigenpair attention `concat` works on {self.tokens} unmasked tokens, "
                f"not {count}{'' if mask is None else ' with a mask'}: use `sum` for sequences of varying length"
            )
        if count > self.tokens:
            raise InputError(f"a sequence of {count} tokens is longer than the {self.tokens} this layer was made for")
        if mask is not None:
            # The published code masks queries and keys alone and lets padding into `carried`; without biases, masking
            # the input masks all three.
            x = x * mask[..., None]
        q, k = (F.normalize(split_heads(half, self.heads), dim=-1) for half in self.qk(x).chunk(2, dim=-1))
        # In a batch shorter than `tokens`, only the carriers that it has take part.
        carriers = [position for position in self.carriers if position < count]
        carried = x if len(carriers) == count else x[:, carriers]
        w_e, w_r = self.w_e[:, : len(carriers)], self.w_r[:, : len(carriers)]
        carried = split_heads(carried, self.heads).mT  # [B, H, dh, carriers]
        return q @ (carried @ w_e), k @ (carried @ w_r)

    def _features(self, e: Tensor, r: Tensor) -> Tensor:
        """V1: [B, H, 2N, s] for concat, [B, H, N, s] for sum."""
        joined = e + r if self.mix is None else torch.cat([e, r], dim=2)
        return joined * (2 * self.log_l).exp()[:, None]

    def _factors(self) -> Tensor:
        """L_k, lower triangular with positive diagonal: [H, k, s, s]."""
        return self.lower.tril(-1) + torch.diag_embed(self.log_s.exp())

    def _ksvd_loss(self, e: Tensor, r: Tensor, mask: Tensor | None) -> Tensor:
        """J^2, J the objective of kernel SVD; means are over inputs, heads and real tokens."""
        energy = ((e.square() + r.square()) * (2 * self.log_l).exp()[:, None]).sum(-1).mean(1)  # [B, N]
        mean = energy.mean() if mask is None else energy.sum() / mask.sum().clamp(min=1)  # e, r of padding are zero
        trace = (self.w_e * self.w_r).sum() / self.heads
        return (0.5 * mean - trace).square()

    def _divergence(self) -> Tensor:
        """KL(q(u) || p(u)) summed over heads and latents."""
        heads, rank = self.log_l.shape
        precision = (4 * self.log_l).exp()  # Lambda^{-2}, [H, s]
        trace = (precision[:, None, :, None] * self._factors().square()).sum()
        distance = (precision[:, :, None] * self.m.square()).sum()
        logs = self.log_s.sum() + 2 * rank * self.log_l.sum()
        return 0.5 * (trace + distance - heads * rank**2) - logs


class SparseGaussianProcessAttention(nn.Module):
    """SGPA: each head's outputs are sparse Gaussian processes over the tokens, with a kernel in place of softmax.

    Chen and Li, "Calibrating Transformers via Sparse Gaussian Processes", ICLR 2023 (the orthogonally decoupled form).
    Per head, queries are keys, so that the kernel k is one: q = W_q x [N, dh], v_g = W_v x [N, dh] and, for the
    inducing inputs z [M, d], k_b = W_q z [M, dh]. With K_bb + jitter I = C C' and A = C^{-1} K_bq [M, N], channel c of
    a head has, at the tokens,

        mean      K_qq v_g - A' A v_g + K_qb v_b
        variance  k(q, q) + |A' S_c|^2 - |A|^2, of each token

    and a sample is mean + sqrt(variance) eps, a draw per token and channel, before the output map W_o.

    tokens: the largest N, for the scale at the start; any N is taken. dropout: rate behind the output map. kernel: with
    lengths l and scale s^2 of the head, `ard` (squared exponential) s^2 exp(-|(a - b) / l|^2 / 2), or `exponential`
    s^2 exp((a / l)'(b / l)). Both start as softmax attention is, with the exponent a'b / sqrt(dh) and, as its rows sum
    to one, s^2 = 1 / tokens; q(u) starts as the prior. inducing: M.
    """

    fixed_length = False

    def __init__(self, width: int, heads: int, tokens: int, dropout: float, *, kernel: str, inducing: int) -> None:
        super().__init__()
        check_heads(width, heads)
        if kernel not in KERNELS:
            raise InputError(f"kernel {kernel!r} is unknown: choose one of {', '.join(KERNELS)}")
        if min(tokens, inducing) < 1:
            raise InputError(f"tokens and inducing must be >= 1, not {tokens}, {inducing}")
        channels = width // heads  # dh
        self.heads, self.kernel = heads, kernel
        self.q, self.v = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.log_sf = nn.Parameter(torch.full((heads,), -math.log(tokens)))  # log s^2
        self.log_ls = nn.Parameter(torch.full((heads, channels), math.log(channels) / 4))  # log l
        self.z = nn.Parameter(torch.randn(heads, inducing, width))
        self.v_b = nn.Parameter(torch.zeros(heads, inducing, channels))
        self.log_s = nn.Parameter(torch.zeros(heads, channels, inducing))  # row c is the log diagonal of S_c
        self.lower = nn.Parameter(torch.zeros(heads, channels, inducing, inducing))  # strictly lower part used

    def forward(self, x: Tensor, mask: Tensor | None = None, noise: Draw | None = None) -> tuple[Tensor, Penalties]:
        """Output [B, N, d]; penalty `kl`, a mean over inputs (not divided by the data size).

        noise draws [B, N, d].
        """
        with _full_precision(x):
            queries, whitened, mean, divergence = self._process(x, mask)
            if noise is not None:
                eps = split_heads(noise(tuple(x.shape), mask).to(mean.dtype), self.heads)
                mean = mean + self._variance(queries, whitened).sqrt() * eps
        return self.dropout(self.o(_merge(mean))), {"kl": divergence}

    def moments(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and marginal variance over the posterior process, both [B, N, d]."""
        with _full_precision(x):
            queries, whitened, mean, _ = self._process(x, mask)
            variance = self._variance(queries, whitened)
        return self.o(_merge(mean)), F.linear(_merge(variance), self.o.weight.square())

    def _process(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q over the lengths [B, H, N, dh], A [B, H, M, N], the mean [B, H, N, dh] and the KL divergence."""
        x = x.to(self.z.dtype)
        if mask is not None:
            x = x * mask[..., None]  # v_g of padding is zero, and with it all that padding adds to a sum over tokens
        inverse_lengths = (-self.log_ls).exp()[:, None]  # [H, 1, dh]
        queries, v_g = split_heads(self.q(x), self.heads) * inverse_lengths, split_heads(self.v(x), self.heads)
        # The factor is of M inducing points that may nearly coincide, and the same for all inputs: in float64.
        weight = self.q.weight.unflatten(0, (self.heads, -1))  # [H, dh, d]
        inducing = self.z.double() @ weight.double().mT * inverse_lengths.double()  # k_b over the lengths, [H, M, dh]
        k_bb = self._kernel(inducing, inducing)
        identity = torch.eye(len(k_bb[0]), dtype=k_bb.dtype, device=k_bb.device)
        inverse = torch.linalg.solve_triangular(_cholesky(k_bb), identity, upper=False).to(x.dtype)  # C^{-1}
        k_qb = self._kernel(queries, inducing.to(x.dtype))  # [B, H, N, M]
        whitened = inverse @ k_qb.mT
        orthogonal = self._kernel(queries, queries) @ v_g - whitened.mT @ (whitened @ v_g)
        divergence = self._divergence(k_bb.to(x.dtype)) + (v_g * orthogonal).sum() / (2 * len(x))
        return queries, whitened, orthogonal + k_qb @ self.v_b, divergence

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """k of points over the lengths, [..., H, N, dh] and [..., H, M, dh] -> [..., H, N, M]."""
        exponent = a @ b.mT
        if self.kernel == "ard":
            exponent = exponent - a.square().sum(-1)[..., :, None] / 2 - b.square().sum(-1)[..., None, :] / 2
        return (self.log_sf.to(a.dtype)[:, None, None] + exponent).exp()

    def _variance(self, queries: Tensor, whitened: Tensor) -> Tensor:
        """[B, H, N, dh], > 0."""
        exponent = self.log_sf[:, None]  # log k(q, q), [H, 1] or [B, H, N]
        if self.kernel == "exponential":
            exponent = exponent + queries.square().sum(-1)
        factors = self._factors()
        excess = factors @ factors.mT - torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
        pairs = (whitened[..., :, None, :] * whitened[..., None, :, :]).flatten(2, 3)  # [B, H, M*M, N]
        variance = exponent.exp()[..., None] + pairs.mT @ excess.flatten(2).mT
        return variance.clamp(min=torch.finfo(variance.dtype).tiny)  # rounding; a square root has no slope at zero

    def _factors(self) -> Tensor:
        """S_c, lower triangular with positive diagonal: [H, c, M, M]."""
        return self.lower.tril(-1) + torch.diag_embed(self.log_s.exp())

    def _divergence(self, k_bb: Tensor) -> Tensor:
        """The part of KL(q || p) that is the same for all inputs, summed over heads and channels."""
        distance = (self.v_b * (k_bb @ self.v_b)).sum()
        return (self._factors().square().sum() + distance - self.log_s.numel()) / 2 - self.log_s.sum()


# attention that a backbone may have in place of softmax: kind -> layer, called with width, heads, tokens, dropout and
# the keywords of its own settings
ATTENTIONS: dict[str, type[nn.Module]] = {"kep_svgp": KernelEigenpairAttention, "sgpa": SparseGaussianProcessAttention}


def _orthogonal(heads: int, rows: int, columns: int) -> nn.Parameter:
    """Per head a matrix [rows, columns] with orthonormal columns (or rows, where these are fewer)."""
    return nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(rows, columns)) for _ in range(heads)]))


def _full_precision(x: Tensor) -> torch.autocast:
    """Context without the caller's autocast: a variance is a small difference of large numbers."""
    return torch.autocast(x.device.type, enabled=False)


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower factors of positive semi-definite matrices [H, M, M] with the least jitter on the diagonal that they need.

    Not finite where the matrices are not.
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for power in range(JITTERS):
        factors, failures = torch.linalg.cholesky_ex(matrix + JITTER * 10**power * identity)
        if not failures.any():
            return factors
    return torch.full_like(matrix, torch.nan)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, d] -> [B, H, N, d/H]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    """[B, H, N, dh] -> [B, N, H dh]."""
    return x.transpose(1, 2).flatten(2)
