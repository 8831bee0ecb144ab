"""Tests of the places where trainings run: containers, notebooks, steps of a scheduler, little shared memory."""
