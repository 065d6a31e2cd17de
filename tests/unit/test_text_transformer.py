"""The text transformer: padding changes nothing."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from director.data.tokenizer import train_tokenizer, vocabulary_size
from director.errors import InputError
from director.models.transformers import TextTransformer, pretrained_embedding
from director.models.weights import parameter_count
from director.noise import ExampleNoise, fold, unfold
from director.path.residual import path_of, student_of
from director.path.trajectory import capture
from director.settings.training import Kernel, Losses
from director.training.predict import predict

TOKENIZER = train_tokenizer(["the key is here", "the keys are here", "a bird sings", "birds sing"], 60)
SMALL = {"max_length": 7, "width": 12, "depth": 3, "heads": 3, "mlp_width": 10, "classes": 4, "tokenizer": TOKENIZER}
KEP = {"attention": {"kind": "kep_svgp", "layers": 2, "variant": "sum", "rank": 2, "multiplier": 2}}
SGPA = {"attention": {"kind": "sgpa", "layers": 2, "kernel": "exponential", "inducing": 2}}
LENGTHS = (7, 1, 4)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def small(dtype=torch.float32, **changes):
    torch.manual_seed(1)
    return TextTransformer(**SMALL | changes).eval().to(dtype)


def student(dtype=torch.float32, **changes):
    """A student away from its start, where every step is the identity."""
    made = student_of(path_of(small(dtype, **changes)), Kernel()).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in made.kernel.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def texts(lengths=LENGTHS, width=7):
    """Different tokens for each text, padded with a token that means something where it is real."""
    tokens = torch.full((len(lengths), width), 3)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    for row, length in enumerate(lengths):
        tokens[row, :length] = (torch.arange(length) + 5 * row + 2) % vocabulary_size(TOKENIZER)
    return {"tokens": tokens, "mask": mask}


class Batch:
    """Two texts as the examples of a prediction."""

    dataset = SimpleNamespace(example=np.arange(2))

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return 2

    def batch(self, rows):
        return {name: values[rows] for name, values in self.inputs.items()}, None


def alone(row):
    """One text of the batch without its padding."""
    return {name: values[row : row + 1, : LENGTHS[row]] for name, values in texts().items()}


def test_samples_that_share_layers_are_those_of_repeated_padded_texts():
    model, noise = small(**KEP), ExampleNoise(0, [1, 2, 3], 3)
    repeated = {name: fold(values, 3) for name, values in texts().items()}
    torch.testing.assert_close(model(texts(), noise, samples=3), model(repeated, noise))


def test_parameter_count_of_the_papers_cola_model_but_for_its_table():
    words = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    tokenizer = train_tokenizer(words * 2, 120)
    model = TextTransformer(tokenizer=tokenizer, max_length=64, width=256, depth=5, heads=4, mlp_width=256, classes=2)
    d, table = 256, vocabulary_size(tokenizer) * 256
    block = 6 * (d * d + d) + 2 * 2 * d
    assert parameter_count(model) == table + 64 * d + 5 * block + 2 * d + 2 * d + 2


def test_an_embedding_is_table_and_position_and_zero_at_padding():
    model, inputs = small(), texts()
    x, mask = model.embedding(inputs)
    assert torch.equal(mask, inputs["mask"]) and (x[~mask] == 0).all()
    expected = model.embedding.table.weight[inputs["tokens"][2, 3]] + model.embedding.position[3]
    assert torch.equal(x[2, 3], expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "make",
    [small, partial(small, **KEP), partial(small, **SGPA), student],
    ids=["softmax", "kep_svgp", "sgpa", "student"],
)
def test_a_text_has_the_same_logits_alone_and_padded_in_a_batch(make, dtype):
    model, tolerance = make(dtype), {"rtol": 0, "atol": TOLERANCE[dtype]}
    with torch.no_grad():
        together = model(texts())
        for row in range(len(LENGTHS)):
            torch.testing.assert_close(model(alone(row)), together[row : row + 1], **tolerance)
    assert (together[0] - together[2]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "make", [partial(small, **KEP), partial(small, **SGPA), student], ids=["kep_svgp", "sgpa", "student"]
)
def test_a_texts_samples_are_the_same_alone_and_padded_in_a_batch(make):
    model = make()

    def samples(inputs, examples):
        folded = {name: fold(values, 3) for name, values in inputs.items()}
        with torch.no_grad():
            return unfold(model(folded, ExampleNoise(5, examples, 3)), 3)

    together = samples(texts(), [10, 11, 12])
    assert together.std(0).min() > 1e-6
    for row in range(len(LENGTHS)):
        torch.testing.assert_close(samples(alone(row), [10 + row]), together[:, row : row + 1], rtol=1e-5, atol=1e-5)


def test_a_students_profile_and_losses_do_not_see_padding():
    made, teacher = student(), path_of(small())
    short, padded = texts((4, 2), width=4), texts((4, 2), width=7)

    def told(inputs):
        """What a student tells of its steps, without noise: log-variances of the real tokens."""
        steps = []
        made(inputs, on_step=lambda log_variance, mask: steps.append((log_variance[mask], mask)))
        assert all(mask is inputs["mask"] for _, mask in steps)
        return torch.stack([log_variances for log_variances, _ in steps])

    def profile(inputs):
        return predict(made, Batch(inputs), randomness="noise").profile

    def loss(inputs):
        trajectory = capture(teacher, inputs)
        return made.path_loss(trajectory.states, trajectory.variances, trajectory.mask, Losses())

    torch.testing.assert_close(told(padded), told(short))
    np.testing.assert_allclose(profile(padded), profile(short), rtol=1e-5)
    torch.testing.assert_close(loss(padded), loss(short))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 0}, "max_length is 0"),
        ({"heads": 5}, "5 heads do not divide a width of 12"),
        (
            {"attention": KEP["attention"] | {"variant": "concat"}},
            "'concat'.* needs inputs of one length, but texts differ; use the variant sum",
        ),
        ({"tokenizer": "{}"}, "not the JSON of a tokenizer"),
    ],
)
def test_bad_sizes_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        small(**changes)


def test_a_text_longer_than_the_model_is_refused():
    with pytest.raises(InputError, match="a text of 9 tokens was given to a model of max_length 7"):
        small()(texts((9,), width=9))


@pytest.fixture
def encoder(tmp_path):
    """A small pretrained encoder with its tokenizer, as a folder."""
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    fast = Tokenizer.from_str(TOKENIZER)
    PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(tmp_path)
    torch.manual_seed(0)
    rows = vocabulary_size(TOKENIZER) + 3
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=rows, **sizes)).save_pretrained(tmp_path)
    return tmp_path


def test_a_pretrained_table_has_the_scale_of_a_fresh_one(encoder):
    from transformers import AutoModel

    table = pretrained_embedding(str(encoder))
    assert table.shape == (vocabulary_size(TOKENIZER) + 3, 8) and table.dtype == torch.float32
    assert table.mean().abs() < 1e-6 and table.std() == pytest.approx(1)
    given = AutoModel.from_pretrained(encoder).get_input_embeddings().weight.detach()
    assert np.corrcoef(table.flatten(), given.flatten())[0, 1] == pytest.approx(1)


def test_the_table_of_the_real_minilm(minilm):
    table = pretrained_embedding(minilm)
    assert table.shape == (30522, 384)
    near = torch.nn.functional.cosine_similarity(table[[2154, 2154]], table[[2733, 14124]])  # day: week, kern
    assert near[0] > near[1] + 0.2


def test_an_encoder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"embedding .*nothing: cannot be loaded .* give a folder"):
        pretrained_embedding(str(tmp_path / "nothing"))
