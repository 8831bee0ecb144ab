"""Tests of the agent: how it starts, works, dies, restarts and leaves."""
