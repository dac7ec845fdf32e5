"""DSTAR: rtl."""
