"""Quantizing unit: binary16 token vectors to encoded tiles."""

from .qpu import QPU

__all__ = ["QPU"]
