"""Shipping: what lies in a node's folder goes to a collector, once in effect. For agent and for `logclient sync`.

=============  =========================================================================
`shipper.py`   one node's conversation with a collector, begun again for ever: `Shipper`
`progress.py`  how far it is, for whoever watches: `Progress`
`source.py`    what is new of one node, over several folders: `FolderSource`
`feed.py`      one folder on a disk, read by a thread that may hang
`staged.py`    the segments that an agent holds on tmpfs
`parcels.py`   items become parcels
`bisect.py`    a parcel that was refused for good, in parts
`backoff.py`   how long to wait before the next try
`settings.py`  sizes and pauses: `ShipSettings`
=============  =========================================================================
"""
