"""The one exception that synthesis reports to a user."""


class SynthError(RuntimeError):
    """A library, a tool or a design that cannot be used; the message says which and why."""
