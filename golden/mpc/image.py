"""A layer in the core's memory: its tensors written as the compiler expects them, and read back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dstar.golden.weights import QuantizedWeight

from .layout import (
    Allocator,
    Bytes,
    Half,
    Places,
    Tiling,
    pack_parameters,
    pack_vectors,
    pack_weights,
    unpack_vectors,
)
from .memory import Memory
from .plan import Plan


@dataclass(frozen=True, eq=False)
class LayerImage:
    """Where a layer's tensors lie, and how they get there and back.

    Activations and outputs are binary16 (tokens, channels).
    """

    plan: Plan
    places: Places
    memory: Memory

    @classmethod
    def place(
        cls,
        plan: Plan,
        memory: Memory,
        allocator: Allocator,
        *,
        weight: QuantizedWeight,
        bias: Half,
        after: LayerImage | None = None,
    ) -> LayerImage:
        """Take memory for a layer and write its weights, scales and biases.

        ``after``: the layer whose activated outputs are this one's activations.

        Raises
        ------
        CompileError
            If the memory is too small.
        """
        tiling = plan.tiling
        word = tiling.geometry.word_bytes

        def take(words: int, what: str) -> int:
            return allocator.take(words * word, what)

        stride = tiling.shape.inner if after is None else after.plan.tiling.columns
        given = None if after is None else after.places.gelu
        places = Places(
            x=take(tiling.x_words(), "activations") if given is None else given,
            x_stride=stride,
            reference=take(tiling.x_words(), "references"),
            y=take(tiling.y_words, "outputs"),
            weights=take(tiling.weight_words, "weights"),
            parameters=take(tiling.parameter_words, "parameters"),
            gelu=take(tiling.y_words, "activated outputs") if plan.gelu else None,
            mask=take(1, "mask of missing tokens") if plan.masked else None,
        )
        if places.mask is not None:
            present = np.arange(tiling.geometry.cfg.array.rows) < (
                tiling.geometry.cfg.array.rows - tiling.missing_tokens
            )
            memory.write(places.mask, present.astype(np.float16).view(np.uint8))
        memory.write(places.weights, pack_weights(weight, tiling))
        memory.write(places.parameters, pack_parameters(weight, bias, tiling))
        return cls(plan, places, memory)

    @property
    def _tiling(self) -> Tiling:
        return self.plan.tiling

    def write_x(self, x: Half) -> None:
        """Write the activations of a step."""
        rows = self._tiling.geometry.cfg.array.rows
        self.memory.write(self.places.x, pack_vectors(x, rows, self.places.x_stride))

    def _read(self, address: int, channels: int, width: int) -> Half:
        tiling = self._tiling
        data: Bytes = self.memory.read(
            address, tiling.token_tiles * channels * tiling.geometry.word_bytes
        )
        rows = tiling.geometry.cfg.array.rows
        return unpack_vectors(data, rows, tiling.shape.tokens, channels, width)

    def read_y(self) -> Half:
        """The outputs."""
        return self._read(self.places.y, self._tiling.columns, self._tiling.shape.out)

    def read_reference(self) -> Half:
        """The references of the next step."""
        return self._read(self.places.reference, self._tiling.shape.inner, self._tiling.shape.inner)

    def read_gelu(self) -> Half:
        """The activated outputs.

        Raises
        ------
        ValueError
            If the plan has none.
        """
        if self.places.gelu is None:
            raise ValueError("the plan must have a GELU, got none")
        return self._read(self.places.gelu, self._tiling.columns, self._tiling.shape.out)


def flat_tokens(x: np.ndarray[tuple[int, ...], np.dtype[np.float16]]) -> Half:
    """Leading dimensions (samples) as further tokens."""
    return x.reshape(-1, x.shape[-1])
