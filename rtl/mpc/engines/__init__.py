"""Engines of the core that compute: each turns commands into a unit's streams."""
