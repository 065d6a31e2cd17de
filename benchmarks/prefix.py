"""What it saves that the layers before a student run once: `python benchmarks/prefix.py`.

A training epoch of a student with the captured states in memory, in epochs with the model running along: MiniLM's
sizes with its last two of six layers replaced, and a Qwen2 of 24 layers and reduced width with its last five.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
import transformers
from timing import paired, peak_gigabytes, ratio
from torch import nn

from director.path.partial import PartialPath
from director.path.residual import path_of, student_of
from director.settings.training import Kernel, Student, Training
from director.training.batches import Batches, CapturedStates, LiveBatches, captured_states
from director.training.train_student import distillation_terms

STUDENT = Student(training=Training(epochs=2, batch_size=32, learning_rate=5e-4, warmup_epochs=1))
COMMON = {"hidden_act": "gelu", "vocab_size": 5000, "pad_token_id": 0, "num_labels": 2}


def minilm() -> tuple[nn.Module, int]:
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes | COMMON)), 2


def qwen2() -> tuple[nn.Module, int]:
    sizes = {"hidden_size": 256, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(**sizes | {"intermediate_size": 1024} | COMMON | {"hidden_act": "silu"})
    return transformers.Qwen2ForSequenceClassification(config), 5


def epoch_of(path: PartialPath, examples: CapturedStates | LiveBatches) -> Callable[[], None]:
    """An epoch of training a fresh student, without what it is validated with."""
    torch.manual_seed(0)
    network = student_of(path, Kernel()).train()
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimiser = torch.optim.Adam(weights, fused=True)
    generator = torch.Generator().manual_seed(0)

    def epoch() -> None:
        for rows in examples.epoch_batches(STUDENT.training.batch_size, seed=0, epoch=0):
            batch, labels = examples.batch(rows, 0)
            optimiser.zero_grad()
            distillation_terms(network, path, STUDENT, batch, labels, generator)["loss"].backward()
            optimiser.step()

    return epoch


def measure(name: str, make: Callable[[], tuple[nn.Module, int]], rounds: int, tokens: int, texts: int) -> None:
    torch.manual_seed(0)
    model, last = make()
    model.eval().requires_grad_(False)
    path = PartialPath(path_of(model), last, 1)
    columns = {"input_ids": torch.randint(3, 5000, (texts, tokens)), "label": torch.randint(2, (texts,))}
    batches = Batches(columns, model, STUDENT.training.batch_size)
    captured = captured_states(path, batches, STUDENT.losses, classes=2, gigabytes=8.0)
    epochs = {"captured": epoch_of(path, captured), "live": epoch_of(path, LiveBatches(batches, classes=2))}
    seconds = paired(epochs, rounds, warm_up=1)
    megabytes = sum(state.nbytes for state in captured.states) / 1e6
    print(f"{name}, the last {last} layers, {texts} texts of {tokens} tokens:")
    print(f"  an epoch live, in epochs from captured states: {ratio(seconds, 'live', 'captured')}")
    print(f"  captured states: {megabytes / texts:.2f} MB a text")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads; median ratio [smallest, largest] over the rounds")
    for name, make in (("MiniLM", minilm), ("Qwen2", qwen2)):
        measure(name, make, options.rounds, options.tokens, options.texts)
    print(f"peak of the process: {peak_gigabytes():.2f} GB")


if __name__ == "__main__":
    main()
