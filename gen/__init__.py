"""DSTAR: gen."""
