"""The one-step kernel of DIRECTOR, shared by all steps (arXiv 2602.08920): a DiT block with two heads.

Peebles and Xie, "Scalable Diffusion Models with Transformers", ICCV 2023, for the block and its conditioning.
"""

import math

import torch
from torch import Tensor, nn

from director.errors import InputError
from director.models.attention import SoftmaxAttention, check_heads
from director.settings.training import Kernel

LOG_VARIANCE_RANGE = (-12.0, 4.0)
LOG_VARIANCE_START = -3.0


class TimeEmbedding(nn.Module):
    """Step numbers [R] -> condition [R, d]: 256 cosines and sines of periods 2 pi to 2 pi 1e4, then a small MLP."""

    WAVES = 128

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * self.WAVES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        like = self.mlp[0].weight
        exponents = torch.arange(self.WAVES, device=like.device, dtype=like.dtype) / self.WAVES
        angles = t[:, None] * (-math.log(1e4) * exponents).exp()  # [R, 128]
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))


class TransitionKernel(nn.Module):
    """X[t] -> N(mean, exp(log-variance)) of X[t+1], diagonal; the same weights for every t.

    At initialisation the mean is X[t] and the log-variance -3. width: d. heads: of its attention. settings: mlp_ratio
    (hidden units of its MLP over d), mlp_first (MLP before attention, the order of a segment of the teacher's path;
    otherwise attention first, the order of DiT), dropout (rate after both linear maps of the MLP and in the two heads).
    causal: no token attends to those behind it, as in the decoder whose layers it replaces.
    """

    def __init__(self, width: int, heads: int, settings: Kernel, causal: bool = False) -> None:
        super().__init__()
        check_heads(width, heads)
        hidden, dropout = round(settings.mlp_ratio * width), settings.dropout
        if hidden < 1:
            raise InputError(f"mlp_ratio {settings.mlp_ratio} leaves the MLP no unit of {width}; raise it")
        self.mlp_first = settings.mlp_first
        self.time = TimeEmbedding(width)
        self.modulation = _zeroed(nn.Linear(width, 6 * width))
        self.attention = SoftmaxAttention(width, heads, scale=(width // heads) ** -0.5, causal=causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width), nn.Dropout(dropout)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.mean, self.log_variance = (
            nn.Sequential(nn.LayerNorm(width), nn.Dropout(dropout), _zeroed(nn.Linear(width, width))) for _ in range(2)
        )
        nn.init.constant_(self.log_variance[-1].bias, LOG_VARIANCE_START)

    def conditions(self, t: Tensor) -> Tensor:
        """What the steps t [R] do to the block, [R, 6d]: shift, scale and gate of attention and of the MLP."""
        return self.modulation(nn.functional.silu(self.time(t)))

    def forward(
        self, x: Tensor, t: int | Tensor, mask: Tensor | None = None, conditions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and log-variance, both [B, N, d], of the state after x [B, N, d].

        t: the step 0..L-1 of the whole batch, or of each row [B]. mask: [B, N], True = real token. conditions: those of
        all steps 0..L-1, for who takes several and computes them once.
        """
        t = t if isinstance(t, Tensor) else torch.full((1,), t, device=x.device)
        condition = self.conditions(t) if conditions is None else conditions[t]
        parts = condition[:, None].chunk(6, dim=-1)  # [., 1, d] each
        halves = [(lambda x: self.attention(x, mask)[0], parts[:3]), (self.mlp, parts[3:])]
        u = x
        for branch, (shift, scale, gate) in reversed(halves) if self.mlp_first else halves:
            # u + gate * branch(norm(u) * (1 + scale) + shift), without temporaries
            u = torch.addcmul(u, gate, branch(torch.addcmul(shift, self.norm(u), 1 + scale)))
        return u + self.mean(u), self.log_variance(u).clamp(*LOG_VARIANCE_RANGE)


def _zeroed(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
