"""Tests of child processes that log: forked, spawned, pooled, and the workers of data loaders."""
