"""The door of a collector: accepts connections and decides which of them take up room. No grpc, no HTTP, no tokens.

==============  ==========================================================================================
`guests.py`     who is here: shares per address, deadlines, and who has to leave when room is needed
`openings.py`   whether the first bytes of a connection are a whole opening of its protocol
`door.py`       the thread that accepts, waits for the opening, and hands the connection on
`relay.py`      the way from such a connection to a server that listens on a socket of its own (gRPC)
`listening.py`  listening sockets for an address
==============  ==========================================================================================

A silent connection costs one descriptor here and nothing in the server behind. The server reports, through
`Door.enter`, which connections have shown a token: those are never closed to make room for one that has not.
"""
