"""The wire: the only users of grpc and of generated code. What they have for the rest of the backend is `Columns`.

===============  ==========================================================================
`batch.py`       records <-> RecordBatch messages
===============  ==========================================================================
"""
