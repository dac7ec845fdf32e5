"""DSTAR: synth."""
