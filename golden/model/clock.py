"""Which denoising step a call of the model belongs to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

#: Names under which models take the time of a step.
TIME_NAMES = ("timestep", "timesteps", "t", "time", "sigma")


class Clock:
    """Counts denoising steps and the evaluations within each.

    Parameters
    ----------
    forward:
        The model's forward function, whose arguments are searched for the time.
    evaluations:
        Calls of the model a step; None learns it: calls with the time of the call before are
        further evaluations of its step.  (Samplers that evaluate twice a step at *different*
        times need no number; those that evaluate two steps at the *same* time, as Heun's method
        does, need 1.)
    on_restart:
        Called when a new sample begins: the time turned back against the direction it had, or
        :meth:`tell` named an earlier step.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        *,
        evaluations: int | None = None,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        if evaluations is not None and evaluations < 1:
            raise ValueError(f"evaluations must be at least 1 or None, got {evaluations}")
        self._signature = inspect.signature(forward)
        self._evaluations, self._on_restart = evaluations, on_restart
        self.rewind()

    def rewind(self) -> None:
        """The next call is the first of a sample."""
        self.step, self.evaluation = -1, 0
        #: Samples in the batch of the current call.
        self.batch = 1
        #: Counts calls of the model; layers tell by it whether they run again in the same one.
        self.calls = 0
        self._time: float | None = None
        self._direction = 0.0
        self._told: int | None = None

    def tell(self, step: int) -> None:
        """Say that the next calls belong to a step."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        if step < self.step:
            self._restart()
        if step != self.step or self._told is None:
            self._told, self.evaluation = step, -1
            self.step = step

    def tick(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call of the model, before it runs."""
        given = self._signature.bind_partial(*args, **kwargs).arguments
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        time = next((_time(given[name]) for name in TIME_NAMES if name in given), None)
        if self._told is not None:
            self.evaluation += 1
        elif not self._same_step(time):
            if time is not None and self._time is not None:
                move = time - self._time
                if move * self._direction < 0:
                    self._restart()
                elif move:
                    self._direction = move
            self.step, self.evaluation = self.step + 1, 0
        else:
            self.evaluation += 1
        self._time = time
        self.batch = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
        self.calls += 1

    def _same_step(self, time: float | None) -> bool:
        if self.step < 0:
            return False
        if self._evaluations is not None:
            return self.evaluation + 1 < self._evaluations
        return time is not None and time == self._time

    def _restart(self) -> None:
        calls = self.calls
        self.rewind()
        self.calls = calls
        self._on_restart()


def _time(value: Any) -> float | None:
    """A time argument as a number: a number, or a tensor's first value."""
    if isinstance(value, Tensor):
        return float(value.reshape(-1)[0]) if value.numel() else None
    return float(value) if isinstance(value, int | float) else None
