"""Values of a model's tensors, taken where they lie at the end of some backward passes, logged without waiting.

`passes.py`        counting backward passes; turns; failures
`norms.py`         `logclient.watch`: norms and histograms of gradients and parameters
`fingerprints.py`  `run.fingerprint`: sums by which replicas are compared

Loaded by the first call of one of them.
"""
