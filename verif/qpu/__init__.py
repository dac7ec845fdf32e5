"""Stimulus, functional coverage and timeline of the quantizing unit."""
