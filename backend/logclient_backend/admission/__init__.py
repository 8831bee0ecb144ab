"""Accepts the connections of a collector and decides which of them take up room. No grpc, no HTTP, no tokens.

=================  ==========================================================================================
`connections.py`   counts connections by address, with deadlines: which one is closed when there are too many
`openings.py`      whether the first bytes of a connection are a whole opening of its protocol
`acceptor.py`      the thread that accepts, waits for the opening, and hands the connection on
`inner_socket.py`  the socket on which the gRPC server listens inside this process
`relay.py`         carries bytes between a client and that socket
`listening.py`     listening sockets for an address
=================  ==========================================================================================

A silent connection costs one descriptor here and nothing in the server behind. The server reports, through
`Acceptor.enter`, which connections have shown a token: those are never closed to make room for one that has not.
"""
