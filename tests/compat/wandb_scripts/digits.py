"""A classifier, in the way that most scripts are written: config, one log per step, a summary at the end."""

import argparse
import random

import torch
from sklearn.datasets import load_digits
from torch import nn

import logclient.compat.wandb as wandb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

wandb.login()
wandb.init(project="digits", name="classifier", entity="team", config=args, tags=["mlp"], job_type="train")
config = wandb.config
wandb.define_metric("val/accuracy", summary="max")
random.seed(0)

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
criterion = nn.CrossEntropyLoss()
wandb.watch(model, criterion, log="all", log_freq=5)

for epoch in range(config.epochs):
    for first in range(0, 1280, 128):
        loss = criterion(model(images[first : first + 128]), labels[first : first + 128])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wandb.log({"train": {"loss": loss}, "epoch": epoch})
    with torch.no_grad():
        right = (model(images[1280:]).argmax(1) == labels[1280:]).float().mean()
    examples = [
        wandb.Image(image.reshape(8, 8), caption=str(label))
        for image, label in zip(images[:3], labels, strict=False)
    ]
    wandb.log(
        {
            "val/accuracy": right,
            "examples": examples,
            "weights": wandb.Histogram(next(model.parameters()).detach()),
        },
        commit=False,
    )

artifact = wandb.Artifact("model", type="model")
with artifact.new_file("notes.txt") as file:
    file.write("nothing")
wandb.log_artifact(artifact)
wandb.save("*.pt")
wandb.summary["parameters"] = sum(parameter.numel() for parameter in model.parameters())
wandb.alert(title="Done", text="It is trained.", level=wandb.AlertLevel.INFO)
wandb.finish()
