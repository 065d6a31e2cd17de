"""A BERT of transformers with calibrated uncertainty, in a minute: `python examples/transformers_texts.py`.

It trains a tiny one on a toy task first (is a mark among the tokens?), as nothing is downloaded; put your own in its
place.
"""

import argparse

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification

from director.numbers.metrics import accuracy, ece_15, nll
from director.reconfigure import Director
from director.settings.training import Training


def sentences(count: int, seed: int) -> Dataset:
    """Token lists of 4 to 12; label 1 if the mark 5 is among them, but for a tenth of them that is labelled wrongly."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [
        torch.randint(3, 30, (int(torch.randint(4, 13, (), generator=generator)),), generator=generator).tolist()
        for _ in range(count)
    ]
    wrong = torch.rand(count, generator=generator) < 0.1
    labels = [int(5 in sentence) ^ int(flipped) for sentence, flipped in zip(tokens, wrong, strict=True)]
    return Dataset.from_dict({"input_ids": tokens, "label": labels})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    train, validation, test = sentences(1000, 0), sentences(500, 1), sentences(1000, 2)

    # your own trained model stands here
    config = BertConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64, num_labels=2
    )
    model = BertForSequenceClassification(config)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for row in range(0, len(train), 50):
            batch = train[row : row + 50]
            inputs = torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(tokens) for tokens in batch["input_ids"]], batch_first=True
            )
            optimiser.zero_grad()
            output = model(input_ids=inputs, attention_mask=inputs.ne(0), labels=torch.tensor(batch["label"]).long())
            output.loss.backward()
            optimiser.step()
    model.eval()

    student = Director.from_model(model, last=2)
    training = Training(
        epochs=epochs, batch_size=50, learning_rate=1e-3, warmup_epochs=epochs / 10, selection="val_nll"
    )
    student.fit(train, validation, training=training)
    found = student.predictions(test)
    print(f"student accuracy {accuracy(found):.3f}, NLL {nll(found):.3f}, ECE-15 {ece_15(found):.3f}")
    _, uncertainty = student.predict(test, samples=10, seed=0)
    print(f"mutual information, mean: {uncertainty.mutual_information.mean():.4f} nats")


if __name__ == "__main__":
    main()
