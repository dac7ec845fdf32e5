"""Golden model of the vector unit: arithmetic, tables, programs."""
