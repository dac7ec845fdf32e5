"""DSTAR: verif."""
