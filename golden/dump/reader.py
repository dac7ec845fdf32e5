"""The strict, lazy reader of dumps."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .container import DumpError, Entry, read_header
from .convert import Float, check_finite, decode, to_binary16
from .index import LayerIndex, build_index
from .info import DumpInfo

T = TypeVar("T")


class DumpReader:
    """Opens a dump, checks everything the header tells, and reads one tensor at a time.

    Activations (``x``, ``q``, ``k``, ``v``) come as binary16, whatever the file's format; outputs
    (``y``, ``o``), weights and biases as binary32, which holds each of the three formats exactly.
    Values are checked when they are read.  Reading from several threads is safe.

    Parameters
    ----------
    path:
        The safetensors file.
    saturate:
        Clip activations beyond binary16 to +-65504 and count them in :attr:`saturated` instead of
        refusing them.

    Raises
    ------
    DumpError
        If the file is missing, truncated or no dump, a key is missing or unknown, a shape does not
        fit, or, when reading, a value is not finite or lies beyond binary16.
    """

    def __init__(self, path: str | Path, *, saturate: bool = False) -> None:
        self.path = Path(path)
        self.saturate = saturate
        #: Clipped values by key.
        self.saturated: dict[str, int] = {}
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DumpError(f"{self.path}: cannot open: {reason}") from None
        try:
            metadata, self._entries = read_header(self.path, self._file)
            self.info = self._named("", lambda: DumpInfo.from_metadata(metadata))
            self._layers = self._named("", lambda: build_index(self._entries, self.info))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def layers(self) -> tuple[str, ...]:
        """Every layer, in the order of the file."""
        return tuple(self._layers)

    @property
    def linear_layers(self) -> tuple[str, ...]:
        """The layers with ``x``, ``y`` and ``w``."""
        return tuple(name for name, layer in self._layers.items() if layer.is_linear)

    @property
    def steps(self) -> range:
        """The denoising steps; every layer has every one."""
        return range(self.info.steps)

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key of the file."""
        return tuple(self._entries)

    def layer(self, name: str) -> LayerIndex:
        """Shapes and tensors of a layer."""
        if name not in self._layers:
            raise DumpError(f"{self.path}: no layer {name!r}; layers are {_list(self.layers)}")
        return self._layers[name]

    def match(self, glob: str) -> tuple[str, ...]:
        """The linear layers whose name matches `glob` (``*``, ``?``, ``[abc]``).

        Raises
        ------
        DumpError
            If there is none; the message lists the names.
        """
        found = tuple(n for n in self.linear_layers if fnmatch.fnmatchcase(n, glob))
        if not found:
            names = _list(self.linear_layers)
            raise DumpError(f"{self.path}: no linear layer matches {glob!r}; layers are {names}")
        return found

    def x(self, layer: str, step: int) -> NDArray[np.float16]:
        """Input of a linear layer: binary16, tokens x in."""
        return self.activation(layer, step, "x")

    def y(self, layer: str, step: int) -> NDArray[np.float32]:
        """Output of a linear layer as the model computed it: binary32, tokens x out."""
        return self.output(layer, step, "y")

    def w(self, layer: str) -> NDArray[np.float32]:
        """Weight of a linear layer: binary32, out x in."""
        return self._read(self._static(layer, "w")).astype(np.float32)

    def b(self, layer: str) -> NDArray[np.float32] | None:
        """Bias of a linear layer: binary32, out; None if it has none."""
        if "b" not in self.layer(layer).static:
            return None
        return self._read(self._static(layer, "b")).astype(np.float32)

    def activation(self, layer: str, step: int, tensor: str) -> NDArray[np.float16]:
        """One of ``x``, ``q``, ``k``, ``v``: binary16, rounded to nearest even."""
        entry = self._step(layer, step, tensor)
        values = self._read(entry)
        rounded, clipped = self._named(
            entry.key, lambda: to_binary16(values, saturate=self.saturate)
        )
        if clipped:
            self.saturated[entry.key] = clipped
        return rounded

    def output(self, layer: str, step: int, tensor: str) -> NDArray[np.float32]:
        """One of ``y``, ``o``: binary32."""
        return self._read(self._step(layer, step, tensor)).astype(np.float32)

    def _static(self, layer: str, tensor: str) -> Entry:
        tensors = self.layer(layer).static
        if tensor not in tensors:
            raise DumpError(f"{self.path}: {layer}: has no tensor {tensor!r}")
        return tensors[tensor]

    def _step(self, layer: str, step: int, tensor: str) -> Entry:
        tensors = self.layer(layer).steps
        if tensor not in tensors:
            raise DumpError(
                f"{self.path}: {layer}: has no tensor {tensor!r}; has {_list(sorted(tensors))}"
            )
        if step not in self.steps:
            rule = f"step must be from 0 to {self.info.steps - 1}"
            raise DumpError(f"{self.path}: {layer}: {rule}, got {step}")
        return tensors[tensor][step]

    def _read(self, entry: Entry) -> Float:
        raw = os.pread(self._file.fileno(), entry.spec.nbytes, entry.offset)
        if len(raw) != entry.spec.nbytes:
            raise DumpError(f"{self.path}: {entry.key}: truncated while it was open")
        values = decode(raw, entry.spec)
        self._named(entry.key, lambda: check_finite(values))
        return values

    def _named(self, key: str, action: Callable[[], T]) -> T:
        """The result of `action`, with file and key put before the message of a DumpError."""
        try:
            return action()
        except DumpError as error:
            where = f"{self.path}: {key}: " if key else f"{self.path}: "
            raise DumpError(f"{where}{error}") from None


def _list(names: Iterable[str], limit: int = 40) -> str:
    """Names for a message, shortened."""
    items = list(names)
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
