"""The wire: the only users of grpc and of generated code. What they have for the rest of the backend is `Columns`.

=============================  ========================================================================
`messages.py` `sanitize.py`    the messages, as plain Python; words from elsewhere made fit to be shown
`address.py` `credentials.py`  where a collector is, and the token for it
`node_report.py`               what an agent saw of a run that does not get on
`batch.py` `convert.py`        records, and the small messages, <-> protobuf
`pages.py`                     what a collector gives back of a run
`decode.py`                    parcels from a client that is not to be believed
`service.py`                   what a collector is to the wire: plain Python, with its limits
`server.py`                    the collector's side, in front of it
`inbound.py` `outbound.py`     of one conversation: what the client sends, what it is answered
`byte_budget.py`               how much is under way, of all conversations together
`channel.py` `client.py`       the shipper's side
=============================  ========================================================================
"""
