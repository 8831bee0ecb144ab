"""Tests of the run folder: on network mounts, shared by hosts, unusable, with odd files in it, and its modes."""
