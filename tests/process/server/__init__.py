"""Tests of the collector as a process: `logclient server`, who reads from it, and who crowds it."""
