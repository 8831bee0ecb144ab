"""Shipping: what lies in a node's folder goes to a collector, once in effect. For agent and for `logclient sync`.

===================  ==========================================================================
`shipper.py`         one node's conversation with a collector, begun again for ever: `Shipper`
`sender.py`          what that collector lacks, until it is acknowledged: `Sender`
`phase.py`           how far the work is: a drawing of the phases and what ends each
`documents.py`       which version of the node's documents is due
`loss_check.py`      what was durable once and lies nowhere
`in_flight.py`       parcels that are sent and not answered
`parcels.py`         items become parcels
`bisect.py`          a parcel that was refused for good, in parts
`source.py`          what is new of one node, over several folders: `FolderSource`
`folder_reader.py`   one folder on a disk, read by a thread that may hang
`tmpfs_segments.py`  the segments that an agent holds on tmpfs
`progress.py`        counts, and the state of the conversation, for whoever watches: `Progress`
`backoff.py`         how long to wait before the next try
`throttled_log.py`   trouble in a log, a line a minute
`settings.py`        sizes and pauses
===================  ==========================================================================
"""
