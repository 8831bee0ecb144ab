"""Alerts: from what is known of a run to a message that somebody gets.

==================  ================================================================================
`event.py`          what is delivered: kind, phase, run, node, rank, step, key, value, text, episode
`facts.py`          what an observer or a collector has seen of a run, once per look
`rules.py`          rules over records as they come, and over facts; in constant memory
`series.py`         the rules of one series: over, under, nonfinite, spike, drop
`conditions.py`     the rules over facts: stalled, gone, state, disk, budget, dropped records, straggler
`user_alerts.py`    new alerts of programs, from their documents
`episodes.py`       each episode begins once and ends once; rate limits
`targets.py`        the file that says where alerts go, and how it is checked
`target_file.py`    reads that file again when it changes, in a child, since its disk may hang
`attempt.py`        a child with a deadline
`webhook.py`        one POST over HTTP or HTTPS; imports requests
`command.py`        one command, and the end of its process group
`delivery.py`       a bounded queue per target, retries
`saved.py`          events and open episodes on tmpfs: for `logclient status`, and for the next observer
`node_alerts.py`    all of it on one node, for the observer of an agent
`sender.py`         delivery as a process of its own, for a collector
==================  ================================================================================

An observer calls `NodeAlerts.feed` with records and `NodeAlerts.look` once per look; neither waits. Where alerts go
stands in a file on the machine that sends, and in nothing that a run, the wire or the HTTP API brings.
"""
