"""Tests with faults that are made: clocks set, disks that hang, memory that is short, processes that are killed."""
