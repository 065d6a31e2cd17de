"""The part of a path that a student replaces: its last steps, and steps of several segments."""

import pytest
import timm
import torch
import transformers

from director.data.tokenizer import train_tokenizer
from director.errors import InputError
from director.models.transformers import ImageTransformer, TextTransformer
from director.noise import BatchNoise
from director.path.partial import FrozenPrefix, PartialPath, default_last
from director.path.residual import PathSizes, check_path, path_of, student_of
from director.path.trajectory import capture
from director.settings.training import Kernel, Losses

LAYERS, WIDTH, HEADS, CLASSES = 4, 12, 3, 5
OURS = {"width": WIDTH, "depth": LAYERS, "heads": HEADS, "mlp_width": 8, "classes": CLASSES, "dropout": 0.5}
CONFIG = {"vocab_size": 30, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
CONFIG |= {"intermediate_size": 8, "max_position_embeddings": 20, "pad_token_id": 0}
# last, states_every -> the states of the whole path that are left
PARTS = {
    (None, 1): [0, 1, 2, 3, 4],
    (4, 1): [0, 1, 2, 3, 4],
    (3, 1): [1, 2, 3, 4],
    (1, 1): [3, 4],
    (None, 2): [0, 2, 4],
    (None, 4): [0, 4],
    (2, 2): [2, 4],
    (3, 3): [1, 4],
}


def timm_vit():
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS, "mlp_ratio": 2}
    return timm.models.VisionTransformer(**sizes, num_classes=CLASSES, drop_path_rate=0.3, drop_rate=0.2)


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**CONFIG, num_labels=CLASSES))


def qwen2():
    config = transformers.Qwen2Config(**CONFIG, num_key_value_heads=1, num_labels=CLASSES)
    return transformers.Qwen2ForSequenceClassification(config)


def image_transformer(attention=None):
    return ImageTransformer(image_size=8, channels=3, patch=4, **OURS, attention=attention)


def sgpa_transformer():
    return image_transformer({"kind": "sgpa", "layers": 2, "kernel": "ard", "inducing": 2})


def text_transformer():
    tokenizer = train_tokenizer(["the key is here", "the keys are here", "a bird sings"], 60)
    return TextTransformer(tokenizer=tokenizer, max_length=9, **OURS)


IMAGES = {"timm": timm_vit, "image-transformer": image_transformer, "sgpa": sgpa_transformer}
MODELS = IMAGES | {"bert": bert, "qwen2": qwen2, "text-transformer": text_transformer}


@pytest.fixture(params=MODELS)
def model(request):
    """A model whose weights are all random, so that none of its parts changes nothing."""
    return make(request.param)


def make(name):
    torch.manual_seed(3)
    network = MODELS[name]()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def batch(network):
    """Four inputs as the model takes them; the texts differ in length."""
    generator = torch.Generator().manual_seed(4)
    if isinstance(network, ImageTransformer | timm.models.VisionTransformer):
        return torch.randn(4, 3, 8, 8, generator=generator)
    mask = torch.arange(9) < torch.tensor([9, 3, 5, 1])[:, None]
    tokens = torch.where(mask, torch.randint(3, 20, (4, 9), generator=generator), 0)
    if isinstance(network, TextTransformer):
        return {"tokens": tokens, "mask": mask}
    return {"input_ids": tokens, "attention_mask": mask.long()}


def same_mask(mask, other):
    return mask is other is None or torch.equal(mask, other)


@pytest.mark.parametrize(("part", "left"), PARTS.items(), ids=str)
def test_the_states_are_some_of_those_of_the_whole_path(model, part, left):
    """Each step gives the next of them, the last gives the model's own logits."""
    whole, inputs = path_of(model), batch(model)
    path = PartialPath(whole, *part)
    expected, whole_mask = whole.states(inputs)
    states, mask = path.states(inputs)
    assert (path.steps, path.width, path.heads) == (len(left) - 1, WIDTH, HEADS)
    assert torch.equal(states, expected[left]) and same_mask(mask, whole_mask)
    assert torch.equal(path.embed(inputs)[0], expected[left[0]])
    for step in range(1, path.steps + 1):
        assert torch.equal(path.segment(step, states[step - 1], mask), states[step])
        for choice in ("attention_moments", "zero"):
            mean, variance = path.moments(step, states[step - 1], mask, choice)
            torch.testing.assert_close(mean, states[step])
            # of the last segment alone
            assert torch.equal(variance, whole.moments(left[step], expected[left[step] - 1], mask, choice)[1])
    assert torch.equal(path.logits(inputs), whole.logits(inputs))
    torch.testing.assert_close(path.readout(states[-1], mask), path.logits(inputs))
    _, _, tokens, _ = states.shape
    assert check_path(path, inputs) == PathSizes(len(left), tokens, WIDTH, mask is not None, CLASSES)


@pytest.mark.parametrize(("part", "left"), PARTS.items(), ids=str)
def test_its_trajectory_is_part_of_that_of_the_whole_path(model, part, left):
    whole, inputs = path_of(model), batch(model)
    expected, trajectory = capture(whole, inputs), capture(PartialPath(whole, *part), inputs)
    assert same_mask(trajectory.mask, expected.mask)
    torch.testing.assert_close(trajectory.states, expected.states[left])
    torch.testing.assert_close(trajectory.variances, expected.variances[[state - 1 for state in left[1:]]])
    if trajectory.mask is not None:
        assert (trajectory.mask.sum(1) == torch.tensor([9, 3, 5, 1])).all()
        assert (trajectory.states[:, ~trajectory.mask] == 0).all()


def test_zero_variance_stays_zero_but_for_layers_that_are_gaussian_processes():
    for name, zero in (("timm", True), ("sgpa", False)):
        network = make(name)
        trajectory = capture(PartialPath(path_of(network), states_every=2), batch(network), "zero")
        assert (trajectory.variances[0] == 0).all() and (trajectory.variances[1] == 0).all().item() is zero


def test_a_part_of_a_part():
    network = make("timm")
    whole, inputs = path_of(network), batch(network)
    nested = PartialPath(PartialPath(whole, last=2), states_every=2)
    assert torch.equal(nested.states(inputs)[0], PartialPath(whole, 2, 2).states(inputs)[0])


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"last": 0}, "last is 0, but the path has steps 1 to 4"),
        ({"last": 5}, "last is 5, but the path has steps 1 to 4"),
        ({"states_every": 0}, "states_every is 0; it must be 1"),
        (
            {"states_every": 3},
            "3 does not divide the 4 steps .* states_every of 1, 2, 4, or last a multiple of 3, at most 3",
        ),
        ({"last": 3, "states_every": 2}, "2 does not divide the 3 steps .* 1, 3, or last a multiple of 2, at most 4"),
        ({"states_every": 5}, "5 does not divide the 4 steps that are replaced: choose states_every of 1, 2, 4$"),
    ],
)
def test_parts_that_do_not_exist_are_refused_with_the_remedy(part, words):
    with pytest.raises(InputError, match=words):
        PartialPath(path_of(make("timm")), **part)


def test_steps_count_from_one_to_those_that_are_left():
    network = make("timm")
    path = PartialPath(path_of(network), last=2)
    x, _ = path.embed(batch(network))
    for step in (0, 3):
        with pytest.raises(InputError, match=f"no step {step}: .* steps 1 to 2"):
            path.segment(step, x)


@pytest.mark.parametrize("part", [(2, 1), (2, 2), (None, 2)], ids=str)
def test_a_student_trains_its_kernel_and_readout_and_leaves_what_stays(model, part):
    """Where all of the path is replaced, the embedding is trained, too."""
    path, inputs = PartialPath(path_of(model), *part), batch(model)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.train().modules()]
    student = student_of(path, Kernel(dropout=0.0)).eval()
    start, mask = path.embed(inputs)
    torch.testing.assert_close(student(inputs), path.readout(start, mask))  # its steps change nothing yet
    assert student.settings is None  # it would be rebuilt without what stays
    assert student.kernel.attention.causal is path_of(model).causal is ("Qwen2" in type(model).__name__)
    frozen = part[0] is not None
    assert isinstance(student.embedding, FrozenPrefix) is frozen

    student.train()
    trajectory = capture(path, inputs)
    before = {name: parameter.clone() for name, parameter in student.named_parameters()}
    optimiser = torch.optim.Adam(student.parameters(), 0.01)
    for _ in range(2):  # most of the kernel has no gradient before its gates open
        optimiser.zero_grad()
        loss = student.path_loss(trajectory.states, trajectory.variances, trajectory.mask, Losses())
        noise = BatchNoise(torch.Generator().manual_seed(5))
        (loss + student.task_loss(inputs, torch.tensor([0, 1, 2, 3]), noise)).backward()
        optimiser.step()
    kinds = {name.split(".")[0] for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert kinds == {"kernel", "readout"} | (set() if frozen else {"embedding"})
    assert any((parameter != before[name]).any() for name, parameter in student.readout.named_parameters("readout"))
    assert {name.split(".")[0] for name in student.state_dict()} == kinds

    again, mask = student.embedding(inputs)
    assert same_mask(mask, trajectory.mask)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert [module.training for module in model.modules()] == modes
    if frozen:
        assert torch.equal(again, start) and not again.requires_grad
        assert not any(module.training for module in student.embedding.modules())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(student.embedding(inputs)[0], start)


def test_a_student_shares_nothing_that_it_trains():
    network = make("timm")
    teacher = {parameter.data_ptr() for parameter in network.parameters()}
    for part in ((2, 1), (None, 2)):
        student = student_of(PartialPath(path_of(network), *part), Kernel())
        assert not teacher & {parameter.data_ptr() for parameter in student.parameters()}


@pytest.mark.parametrize(("steps", "last"), [(1, 1), (2, 1), (4, 1), (5, 2), (6, 2), (7, 2), (12, 4), (24, 8)])
def test_of_a_pretrained_model_the_last_third_is_replaced(steps, last):
    assert default_last(steps) == last


@pytest.mark.parametrize(("every", "last"), [(2, 4), (3, 3), (5, 5), (12, 12), (13, 4), (0, 4)])
def test_the_third_is_one_of_whole_steps(every, last):
    assert default_last(12, every) == last
