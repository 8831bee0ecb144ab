"""Other trackers' names for what logclient does. Imports nothing; import the module that you need."""
