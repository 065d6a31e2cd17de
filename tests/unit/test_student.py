"""The student: its size, its roll-outs and its losses."""

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch.distributions import Normal, kl_divergence

from director.data.tokenizer import train_tokenizer
from director.errors import InputError
from director.models.kernel import TransitionKernel
from director.models.student import StudentNetwork
from director.models.transformers import Block, ImageTransformer, TextTransformer
from director.models.weights import parameter_count
from director.noise import ExampleNoise, fold, unfold
from director.path.residual import path_of, student_of
from director.path.trajectory import Trajectory, capture
from director.settings.training import Kernel, Losses

STEPS, WIDTH = 3, 12


def teacher(**changes):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "channels": 1, "patch": 4, "width": WIDTH, "depth": STEPS, "heads": 3, "mlp_width": 8}
    return ImageTransformer(**sizes | {"classes": 4} | changes).eval()


def student(trained=True, **options):
    made = student_of(path_of(teacher()), Kernel(**options)).eval()
    if trained:  # away from the identity
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in made.kernel.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def images(count=4):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def walk(made, inputs, noise=None):
    """The student's own path X[0..L] [L+1, R, N, d], step by step, and the mask."""
    x, mask = made.embedding(inputs)
    states = [x]
    for t in range(made.steps):
        states.append(made.step(t, states[-1], mask, noise)[0])
    return torch.stack(states), mask


def path_loss(made, trajectory, kind="kl", **options):
    losses = Losses(path=kind, **options)
    return made.path_loss(trajectory.states, trajectory.variances, trajectory.mask, losses)


def made_up_trajectory(masked=False):
    torch.manual_seed(3)
    mask = torch.arange(5) < torch.tensor([[5], [2]]) if masked else None
    return Trajectory(torch.randn(STEPS + 1, 2, 5, WIDTH), torch.rand(STEPS, 2, 5, WIDTH), mask)


def test_roll_outs_of_an_input_share_all_that_comes_before_their_noise(monkeypatch):
    made, inputs, samples = student(), images(), 3
    kernel_rows, forward = [], TransitionKernel.forward
    monkeypatch.setattr(
        TransitionKernel, "forward", lambda self, x, *rest: kernel_rows.append(len(x)) or forward(self, x, *rest)
    )
    logits = made(inputs, ExampleNoise(5, range(4), samples), samples=samples)
    assert kernel_rows == [4, 12, 12]
    folded = made(fold(inputs, samples), ExampleNoise(5, range(4), samples))
    torch.testing.assert_close(logits, folded)
    assert not torch.allclose(*unfold(logits, samples)[:2])


def test_a_roll_out_may_begin_with_what_was_embedded_before():
    made = student()
    start, mask = made.embedding(images())
    assert torch.equal(made({"start": start, "mask": mask}), made(images()))
    half = made({"start": start.bfloat16()})
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, made(images()), rtol=0, atol=0.1)


def test_parameter_counts_of_the_cifar_10_configuration():
    network = ImageTransformer(
        image_size=32, channels=3, patch=4, width=384, depth=7, heads=12, mlp_width=384, classes=10
    )
    made = student_of(path_of(network), Kernel())
    assert parameter_count(made) == 2_662_282  # 2.66 M, against 6.27 M of the teacher
    assert made.kernel.attention.heads == 12


def test_a_fresh_student_reads_out_the_teachers_embedding():
    network = teacher()
    path, made = path_of(network), student(trained=False)
    start, mask = path.embed(images())
    states, _ = walk(made, images())
    assert torch.equal(states, start.expand(STEPS + 1, -1, -1, -1))
    torch.testing.assert_close(made(images()), path.readout(start, mask))
    told = []
    logits = made(images(), on_step=lambda *step: told.append(step))
    torch.testing.assert_close(logits, made(images()))
    assert [mask for _, mask in told] == [None] * STEPS
    torch.testing.assert_close(torch.stack([values for values, _ in told]), torch.full((STEPS, *start.shape), -3.0))


def test_a_step_adds_the_predicted_spread_times_the_noise():
    made = student()
    noise = ExampleNoise(3, [5, 6, 7, 8], 1)
    states, mask = walk(made, images(), noise)
    assert len(states) == STEPS + 1
    for t in range(STEPS):
        mean, log_variance = made.kernel(states[t], t)
        expected = mean + log_variance.exp().sqrt() * noise(t, mean.shape)
        torch.testing.assert_close(states[t + 1], expected)
    torch.testing.assert_close(made(images(), noise), made.readout(states[-1], mask))
    told = []
    logits = made(images(), noise, on_step=lambda log_variance, mask: told.append(log_variance))
    torch.testing.assert_close(logits, made(images(), noise))
    assert len(told) == STEPS
    for t in range(STEPS):
        torch.testing.assert_close(told[t], made.kernel(states[t], t)[1])


def test_samples_do_not_depend_on_the_batch():
    made = student()
    together = unfold(made(fold(images(), 3), ExampleNoise(0, [10, 11, 12, 13], 3)), 3)
    alone = unfold(made(fold(images()[1:2], 3), ExampleNoise(0, [11], 3)), 3)
    torch.testing.assert_close(together[:, 1:2], alone, rtol=1e-4, atol=1e-5)
    assert not torch.isclose(together[0], together[1]).any()


@pytest.mark.parametrize("masked", [False, True])
def test_the_path_loss_is_the_mean_divergence_of_torch_distributions(masked):
    made, trajectory = student(), made_up_trajectory(masked)
    total, count = 0.0, 0
    for t in range(STEPS):
        mean, log_variance = made.kernel(trajectory.states[t], t, trajectory.mask)
        teachers = Normal(trajectory.states[t + 1], (trajectory.variances[t] + 1e-2).sqrt())
        divergence = kl_divergence(teachers, Normal(mean, (log_variance / 2).exp()))
        divergence = divergence[trajectory.mask] if masked else divergence
        total, count = total + divergence.sum(), count + divergence.numel()
    torch.testing.assert_close(path_loss(made, trajectory, "kl", variance_floor=1e-2), total / count)


def test_the_divergence_equals_monte_carlo():
    made, trajectory = student(), made_up_trajectory()
    with torch.no_grad():
        teachers = Normal(trajectory.states[1:], (trajectory.variances + 1e-4).sqrt())
        moments = [made.kernel(x, t) for t, x in enumerate(trajectory.states[:-1])]
        mean, log_variance = (torch.stack(part) for part in zip(*moments, strict=True))
        students = Normal(mean, (log_variance / 2).exp())
        draws = teachers.sample((4000,))
        log_ratio = (teachers.log_prob(draws) - students.log_prob(draws)).mean((1, 2, 3, 4))
        torch.testing.assert_close(path_loss(made, trajectory), log_ratio.mean(), rtol=5e-3, atol=0)
        assert log_ratio.std() / 4000**0.5 < 1e-3 * log_ratio.mean()


def test_the_divergence_is_zero_only_for_the_teachers_own_law():
    made = student(trained=False)
    states = images().new_zeros(1, 2, 5, WIDTH).expand(STEPS + 1, -1, -1, -1)
    law = Trajectory(states, torch.full((STEPS, 2, 5, WIDTH), -3.0).exp())
    assert path_loss(made, law, variance_floor=1e-9).abs() < 1e-6
    assert path_loss(made, Trajectory(states, 2 * law.variances)) > 0.1
    assert path_loss(made, Trajectory(torch.cat([states[:1], 1 + states[1:]]), law.variances)) > 1


def test_a_teacher_without_variance_gives_a_finite_loss():
    trajectory = capture(path_of(teacher()), images(), softmax_variance="zero")
    assert (trajectory.variances == 0).all()
    for kind in ("kl", "mse"):
        loss = path_loss(student(), trajectory, kind, std_weight=0.5)
        loss.backward()
        assert loss.isfinite()


@pytest.mark.parametrize("masked", [False, True])
def test_the_squared_loss_of_the_authors(masked):
    made, trajectory = student(), made_up_trajectory(masked)
    real = trajectory.mask if masked else torch.ones(2, 5, dtype=torch.bool)
    moments = [made.kernel(x, t, trajectory.mask) for t, x in enumerate(trajectory.states[:-1])]
    mean, log_variance = (torch.stack(part)[:, real] for part in zip(*moments, strict=True))
    means = F.mse_loss(mean, trajectory.states[1:][:, real])
    stds = F.mse_loss((log_variance / 2).exp(), trajectory.variances.sqrt()[:, real])
    torch.testing.assert_close(path_loss(made, trajectory, "mse"), means)
    torch.testing.assert_close(path_loss(made, trajectory, "mse", std_weight=0.25), means + 0.25 * stds)


def test_padding_does_not_change_the_path_loss():
    made, short = student(), made_up_trajectory(masked=True)
    long = [torch.cat([values, torch.full_like(values, 7.0)], dim=2) for values in (short.states, short.variances)]
    mask = torch.cat([short.mask, torch.zeros_like(short.mask)], dim=1)
    torch.testing.assert_close(path_loss(made, Trajectory(*long, mask)), path_loss(made, short))


def test_the_losses_reach_what_they_train():
    made, noise = student(), ExampleNoise(0, range(4), 1)
    path_loss(made, capture(path_of(teacher()), images())).backward()
    assert all(parameter.grad is not None for parameter in made.kernel.parameters())
    assert all(parameter.grad is None for parameter in [*made.embedding.parameters(), *made.readout.parameters()])
    made.zero_grad()
    labels = torch.tensor([0, 1, 2, 3])
    loss = made.task_loss(images(), labels, noise)
    torch.testing.assert_close(loss, F.cross_entropy(made(images(), noise), labels))
    loss.backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in made.parameters())


def test_unusable_arguments_are_named():
    made, trajectory = student(), made_up_trajectory()
    with pytest.raises(ValidationError, match=r"path\n.*'kl', 'mse' or 'none'.*'wasserstein'"):
        path_loss(made, trajectory, "wasserstein")
    with pytest.raises(InputError, match="'none' has no value; choose kl or mse"):
        path_loss(made, trajectory, "none")
    with pytest.raises(ValidationError, match=r"variance_floor\n.*greater than 0"):
        path_loss(made, trajectory, variance_floor=0)
    with pytest.raises(InputError, match="2 steps was given to a student of 3 steps"):
        path_loss(made, Trajectory(trajectory.states[1:], trajectory.variances[1:]))
    with pytest.raises(InputError, match="not 0"):
        StudentNetwork(made.embedding, TransitionKernel(12, 3, Kernel()), made.readout, steps=0)


@pytest.mark.parametrize(
    "network",
    [
        teacher(),
        teacher(attention={"kind": "kep_svgp", "layers": 2, "variant": "concat", "rank": 2, "multiplier": 1}),
        teacher(attention={"kind": "sgpa", "layers": 2, "kernel": "ard", "inducing": 2}),
        TextTransformer(
            tokenizer=train_tokenizer(["the key is here"], 40),
            max_length=6,
            width=12,
            depth=3,
            heads=3,
            mlp_width=8,
            classes=2,
        ),
    ],
    ids=["image", "kep_svgp", "sgpa", "text"],
)
def test_a_student_is_rebuilt_without_its_teacher(monkeypatch, network):
    made = student_of(path_of(network), Kernel(mlp_ratio=2.0, mlp_first=True))

    def refuse(self, *arguments, **options):
        raise AssertionError(f"a {type(self).__name__} of the teacher was built")

    for part in (Block, ImageTransformer, TextTransformer):
        monkeypatch.setattr(part, "__init__", refuse)
    again = StudentNetwork.from_settings(made.settings)
    assert {name: values.shape for name, values in again.state_dict().items()} == {
        name: values.shape for name, values in made.state_dict().items()
    }
    assert str(again) == str(made) and again.settings == made.settings and again.steps == made.steps == STEPS


def test_a_student_is_made_beside_its_teacher_in_its_precision():
    made = student_of(path_of(teacher().double()), Kernel())
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float64}
    assert made(images().double()).dtype == torch.float64


def test_the_settings_of_the_kernel_reach_it():
    made = student_of(path_of(teacher(heads=2)), Kernel(mlp_ratio=2.0, mlp_first=True, dropout=0.25))
    assert made.kernel.mlp_first and made.kernel.attention.heads == 2 and made.kernel.mlp[0].out_features == 2 * WIDTH
    assert {module.p for module in made.kernel.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}


def test_the_logit_loss_is_the_divergence_from_the_teachers_prediction():
    made = student()
    target = torch.randn(len(images()), made(images()).shape[1], generator=torch.Generator().manual_seed(3))
    p, q = target.softmax(-1), made(images()).softmax(-1)
    expected = (p * (p.log() - q.log())).sum(-1).mean()
    torch.testing.assert_close(made.logit_loss(images(), target, None), expected)
    assert made.logit_loss(images(), made(images()), None).item() == pytest.approx(0, abs=1e-6)
