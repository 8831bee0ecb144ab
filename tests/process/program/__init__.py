"""Tests of the user's program: how it is started, what lies around it, its streams, and how it ends."""
