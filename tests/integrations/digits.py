"""A real small task for the trainers: scikit-learn's digits, and a linear model."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32


def digits(count: int, *, batch: int = BATCH, first: int = 0) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Images from the `first` on, in batches, always in the same order."""
    images, labels = load_digits(return_X_y=True)
    chosen = slice(first, first + count)
    x = torch.tensor(images[chosen] / 16, dtype=torch.float32)
    return DataLoader(TensorDataset(x, torch.tensor(labels[chosen])), batch_size=batch)
