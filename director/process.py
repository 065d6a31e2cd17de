"""The student of DIRECTOR: a teacher's embedding, L steps of one transition kernel, the teacher's readout.

arXiv 2602.08920. The losses are L1 (`path_loss`, uncertainty-aware, along the teacher's path) and L2 (`task_loss`,
performance-aware, along the student's own).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from director.backbones import build_model
from director.files import InputError
from director.noise import Noise
from director.taps import ResidualPath, path_of
from director.trajectory import Trajectory
from director.transition import TransitionKernel

LOSSES = ("kl", "mse")


class Director(nn.Module):
    """X[0] = embedding; X[t+1] ~ N(mean, variance) = kernel(X[t], t) for t = 0..L-1; logits = readout(X[L]).

    embedding(inputs) -> (X[0] [R, N, d], mask [R, N] or None), readout(X[L], mask) -> logits [R, C]. R: rows, samples
    included (`director.noise.fold`). settings: what `from_settings` rebuilds the student from.
    """

    kind = "director"

    def __init__(
        self,
        embedding: nn.Module,
        kernel: TransitionKernel,
        readout: nn.Module,
        steps: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if steps < 1:
            raise InputError(f"a student takes at least 1 step, not {steps}")
        self.embedding, self.kernel, self.readout = embedding, kernel, readout
        self.steps, self.settings = steps, settings

    @classmethod
    def from_teacher(
        cls,
        path: ResidualPath,
        *,
        heads: int | None = None,
        mlp_ratio: float = 1.0,
        mlp_first: bool = False,
        dropout: float = 0.0,
    ) -> "Director":
        """A student that starts as the teacher's embedding and readout, copied, around an identity.

        heads: of the kernel, the teacher's by default; mlp_ratio, mlp_first, dropout: see `TransitionKernel`.
        """
        kernel = {
            "heads": path.heads if heads is None else heads,
            "mlp_ratio": mlp_ratio,
            "mlp_first": mlp_first,
            "dropout": dropout,
        }
        teacher = {"kind": path.model.kind, "settings": path.model.settings}
        embedding, readout = path.student_parts()
        # Beside the teacher, wherever it is.
        place = next(embedding.parameters())
        transition = TransitionKernel(path.width, **kernel).to(place.device, place.dtype)
        return cls(embedding, transition, readout, path.steps, {"teacher": teacher, "kernel": kernel})

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> "Director":
        """A student with fresh weights from the `settings` of another."""
        return cls.from_teacher(path_of(build_model(**settings["teacher"])), **settings["kernel"])

    def step(self, t: int, x: Tensor, mask: Tensor | None = None, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """X[t] -> X[t+1] (its mean without noise) and the log-variance of the step, both [R, N, d]."""
        mean, log_variance = self.kernel(x, t, mask)
        if noise is None:
            return mean, log_variance
        return mean + (log_variance / 2).exp() * noise(t, x.shape, mask).to(x.dtype), log_variance

    def forward(self, inputs: Any, noise: Noise | None = None) -> Tensor:
        """Logits [R, C] of one free-running roll-out per row; without noise each step takes its mean."""
        x, mask = self.embedding(inputs)
        for t in range(self.steps):
            x, _ = self.step(t, x, mask, noise)
        return self.readout(x, mask)

    def roll_out(self, inputs: Any, noise: Noise | None = None) -> tuple[Tensor, Tensor | None]:
        """The student's own path X[0..L] [L+1, R, N, d], and the mask."""
        x, mask = self.embedding(inputs)
        states = [x]
        for t in range(self.steps):
            states.append(self.step(t, states[-1], mask, noise)[0])
        return torch.stack(states), mask

    def forward_with_profile(self, inputs: Any, noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """Logits [R, C], and how uncertainty grows along the path.

        The profile [R, L] is the predicted variance of each step, averaged over real tokens and channels.
        """
        x, mask = self.embedding(inputs)
        profile = []
        for t in range(self.steps):
            x, log_variance = self.step(t, x, mask, noise)
            variance = log_variance.exp().mean(-1)  # [R, N]
            profile.append(variance.mean(1) if mask is None else (variance * mask).sum(1) / mask.sum(1).clamp(min=1))
        return self.readout(x, mask), torch.stack(profile, dim=1)

    def path_loss(
        self, trajectory: Trajectory, kind: str = "kl", variance_floor: float = 1e-4, std_weight: float = 0.0
    ) -> Tensor:
        """L1: the kernel's steps from the teacher's states (teacher forcing) against the teacher's transitions.

        kind `kl`: KL(p || q) of the teacher's p = N(m, v + variance_floor) and the kernel's q, per element, in nats.
        `mse` (the authors' code): squared error of the means + std_weight times that of the standard deviations.
        A mean over inputs, real tokens, channels and steps, so that its size does not depend on theirs.
        """
        steps, batch = trajectory.variances.shape[:2]
        if steps != self.steps or trajectory.states.shape[0] != steps + 1:
            raise InputError(f"a trajectory of {steps} steps was given to a student of {self.steps} steps")
        if kind not in LOSSES:
            raise InputError(f"path loss {kind!r} is unknown; choose one of {', '.join(LOSSES)}")
        if kind == "kl" and variance_floor <= 0:
            raise InputError(f"variance_floor is {variance_floor}; it must be above 0, as the KL takes its logarithm")
        # All steps at once: the states do not depend on the student.
        t = torch.arange(steps, device=trajectory.states.device).repeat_interleave(batch)  # [L*B]
        mask = None if trajectory.mask is None else trajectory.mask.repeat(steps, 1)  # [L*B, N]
        mean, log_variance = self.kernel(trajectory.states[:-1].flatten(0, 1), t, mask)  # [L*B, N, d]
        error = (trajectory.states[1:].flatten(0, 1) - mean).square()
        variance = trajectory.variances.flatten(0, 1)
        if kind == "kl":
            variance = variance + variance_floor
            loss = 0.5 * (log_variance - variance.log() + (variance + error) * (-log_variance).exp() - 1)
        else:
            loss = error + std_weight * ((log_variance / 2).exp() - variance.sqrt()).square()
        return loss.mean() if mask is None else loss[mask].mean()

    def task_loss(self, inputs: Any, labels: Tensor, noise: Noise | None) -> Tensor:
        """L2: cross-entropy of one roll-out from the raw inputs, with gradient through all its steps."""
        return F.cross_entropy(self(inputs, noise), labels)
