"""Tests of the way to a collector: live or by `sync`, over networks with faults, and with tokens that end."""
