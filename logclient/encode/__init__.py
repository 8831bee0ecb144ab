"""From the values that a user passes to the body of a frame.

==================  ==========================================================
`values.py`         what may be a value
`keys.py`           names of series
`tensor.py`         tensors and arrays, without importing a framework
`shapes.py`         the encoder: known shapes by their keys, new ones interned
`lanes.py`          the lane file of this process, and who holds which lane
`device.py`         records whose values lie on a device
`device_copy.py`    copies from a device into its cells
`nested_config.py`  settings as JSON
`about.py`          names, notes, tags and alerts, bounded
==================  ==========================================================
"""
