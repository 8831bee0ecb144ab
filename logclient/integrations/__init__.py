"""Callbacks and loggers for training frameworks, one module each: `from logclient.integrations.fastai import ...`.

A module imports its framework, so it is imported only by whoever uses that. This package imports none of them.
"""
