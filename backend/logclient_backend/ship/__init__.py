"""Shipping: what lies in a node's folder goes to a collector, once in effect. For agent and for `logclient sync`."""
