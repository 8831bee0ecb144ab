"""A tiny language model and a tiny text, for the tests of the Transformers callback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXT = """
The quick brown fox jumps over the lazy dog. A log that nobody reads is a tree that nobody hears; one that
everybody reads is a forest. Step by step the loss goes down, and where it goes up there is a reason.
"""
WIDTH = 16


def pieces(first: int, count: int) -> list[dict[str, Any]]:
    """Pieces of the text, letter by letter."""
    letters = torch.tensor([ord(letter) % 128 for letter in TEXT])
    found = [letters[at : at + WIDTH] for at in range(first, first + count)]
    return [{"input_ids": piece, "labels": piece} for piece in found]


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=128, n_positions=WIDTH, n_embd=8, n_layer=1, n_head=2)
    return GPT2LMHeadModel(config)


def trainer(folder: Path, *callbacks: Any, evaluated: bool = True, **settings: Any) -> Trainer:
    """On the CPU, quiet; 8 steps an epoch, logging every other step."""
    usual: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    arguments = TrainingArguments(**{**usual, **settings})
    made = Trainer(
        model=model(),
        args=arguments,
        train_dataset=pieces(0, 64),
        eval_dataset=pieces(80, 16) if evaluated else None,
        callbacks=list(callbacks),
    )
    made.remove_callback(transformers.PrinterCallback)
    return made
