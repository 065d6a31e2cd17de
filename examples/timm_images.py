"""A vision transformer of timm with calibrated uncertainty, in a minute: `python examples/timm_images.py`.

It trains a tiny one on scikit-learn's digits first, as nothing is downloaded; put your own in its place.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from timm.models.vision_transformer import VisionTransformer
from torch.utils.data import DataLoader, TensorDataset

from director.numbers.metrics import accuracy, ece_15, nll
from director.numbers.predictions import Predictions
from director.reconfigure import Director
from director.settings.training import Training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 8 - 1
    parts = zip(images.split([900, 200, 697]), labels.split([900, 200, 697]), strict=True)
    train, validation, test = (DataLoader(TensorDataset(*part), batch_size=50) for part in parts)

    # your own trained model stands here
    model = VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=10, embed_dim=64, depth=6, num_heads=4, mlp_ratio=2
    )
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(2 * epochs):
        for inputs, truth in train:
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), truth).backward()
            optimiser.step()
    model.eval()

    student = Director.from_model(model, last=2)
    training = Training(
        epochs=epochs, batch_size=50, learning_rate=2e-3, warmup_epochs=epochs / 10, selection="val_nll"
    )
    student.fit(train, validation, training=training)
    with torch.no_grad():
        own = Predictions(torch.cat([model(inputs) for inputs, _ in test]).numpy(), test.dataset.tensors[1].numpy())
    for name, found in (("model", own), ("student", student.predictions(test))):
        print(f"{name:8}accuracy {accuracy(found):.3f}, NLL {nll(found):.3f}, ECE-15 {ece_15(found):.3f}")


if __name__ == "__main__":
    main()
