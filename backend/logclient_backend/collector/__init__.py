"""The collector: takes what agents ship, keeps it in a store, and answers questions about it.

=============  ==============================================================================
`store/`       where it is kept: one interface, an embedded engine
=============  ==============================================================================
"""
