"""Tests of the client in the training process: `init`, `log`, `flush`, `finish`, and what it costs its host."""
