"""Being a guest in somebody's process: exceptions, modules, signals and descriptors that are not ours.

=================  =======================================================================
`foreign.py`       code and exceptions that are not ours
`stdlib.py`        modules of the standard library, whatever lies beside the user's script
`held_signals.py`  signals held back while something is made whole
`descriptors.py`   descriptors that stay clear of 0, 1 and 2
`digest.py`        `blake2b` without OpenSSL
`dynamo.py`        `torch.compile`: one graph break per call
=================  =======================================================================
"""
