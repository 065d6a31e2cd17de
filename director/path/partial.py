"""The part of a path that a student replaces: its last steps, or steps of several segments each.

L = 12, last = 4                   X[0..8] stay as they are, the student takes X[8] -> X[9] -> ... -> X[12]
L = 12, states_every = 2           X[0] -> X[2] -> X[4] -> ... -> X[12], 6 steps
L = 12, last = 4, states_every = 2    X[8] -> X[10] -> X[12], 2 steps
"""

from typing import Any

from torch import Tensor, nn

from director.errors import InputError
from director.path.view import ResidualPath


class PartialPath(ResidualPath):
    """The last steps of another path of L steps; a path itself, so all that takes a path takes it.

    last: how many segments are replaced, 1..L; None is all of them, as L is. The L - last segments before them stay,
    so that X[0] here is X[L - last] there. states_every: how many consecutive segments are one step; it divides `last`.

    The mean of a step of several segments is their composition. Its law has no closed form, so its variance is that of
    the last segment alone, with the state before it taken as certain: what the earlier ones would add is left out.
    """

    def __init__(self, path: ResidualPath, last: int | None = None, states_every: int = 1) -> None:
        last = path.steps if last is None else last
        if not 1 <= last <= path.steps:
            raise InputError(f"last is {last}, but the path has steps 1 to {path.steps}; give one of these, or none")
        if states_every < 1:
            raise InputError(f"states_every is {states_every}; it must be 1 (a step is one segment) or more")
        if last % states_every:
            fitting = ", ".join(str(number) for number in range(1, last + 1) if last % number == 0)
            most = path.steps - path.steps % states_every
            other = f", or last a multiple of {states_every}, at most {most}" if most else ""
            raise InputError(
                f"states_every {states_every} does not divide the {last} steps that are replaced: "
                f"choose states_every of {fitting}{other}"
            )
        super().__init__(path.model)
        self.path, self.states_every, self.kept = path, states_every, path.steps - last
        self.steps, self.width, self.heads = last // states_every, path.width, path.heads
        self.causal = path.causal

    def student_parts(self) -> tuple[nn.Module, nn.Module]:
        """As of the whole path where all of it is replaced; else the embedding is a `FrozenPrefix`."""
        embedding, readout = self.path.student_parts()
        return FrozenPrefix(self) if self.kept else embedding, readout

    def _embed(self, inputs):
        x, mask = self.path._embed(inputs)
        return self._walk(range(1, self.kept + 1), x, mask), mask

    def _open(self, step, x, mask):
        """The earlier segments of the step as well: all before its last attention."""
        last = self._last_segment(step)
        x = self._walk(range(last - self.states_every + 1, last), x, mask)
        return self.path._open(last, x, mask)

    def _attend(self, step, x, mask):
        return self.path._attend(self._last_segment(step), x, mask)

    def _moments(self, step, x, mask):
        return self.path._moments(self._last_segment(step), x, mask)

    def _is_softmax(self, step):
        return self.path._is_softmax(self._last_segment(step))

    def _logits(self, inputs):
        return self.path._logits(inputs)

    def _readout(self, x, mask):
        return self.path._readout(x, mask)

    def _last_segment(self, step: int) -> int:
        """The number, in the whole path, of the segment that ends step l."""
        return self.kept + step * self.states_every

    def _walk(self, segments: range, x: Tensor, mask: Tensor | None) -> Tensor:
        """Through these segments of the whole path."""
        for segment in segments:
            x = self.path._attend(segment, self.path._open(segment, x, mask), mask)
        return x


class FrozenPrefix(nn.Module):
    """Inputs -> (X[0] [B, N, d], mask [B, N] or None) of a path, computed by the model itself, which is not trained.

    It is in evaluation mode whatever the student around it is, gives no gradient and has no tensors of its own: the
    model's are shared, neither trained, saved nor moved to another device with the student.
    """

    def __init__(self, path: ResidualPath) -> None:
        super().__init__()
        self.path = path  # no module, so torch does not count the model among the parts of the student
        self.training = False

    def train(self, mode: bool = True) -> "FrozenPrefix":
        """Changes nothing."""
        return self

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        """In the precision of the model, also under autocast, as the states that the student learns from."""
        return self.path.embed(inputs)


def default_last(steps: int, states_every: int = 1) -> int:
    """How many of its steps to replace in a pretrained model: the last third that steps of `states_every` fill.

    A kernel starts from nothing, so what it replaces forgets the pretraining, and a small data set cannot teach it
    again. Where no whole step fits, the third: `PartialPath` says what does.
    """
    third = max(1, round(steps / 3))
    return max(third - third % states_every, states_every) if 1 <= states_every <= steps else third
