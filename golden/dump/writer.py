"""The streaming writer of dumps."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from .container import DumpError, TensorSpec, build_header, size_text
from .convert import encode
from .index import build_index
from .info import DumpInfo


class DumpWriter:
    """Writes a dump tensor by tensor; leaves a whole file or none.

    Every key is declared first, so the size is known and checked against the free disk space and
    the format's header limit before anything is written.  Tensors then arrive in any order and go
    to a temporary file beside the target, which takes the target's name when the ``with`` block
    ends without an exception.

    Parameters
    ----------
    path:
        The file to write; an existing one is replaced at the end.
    info:
        The metadata.
    tensors:
        Shape and format of every key, see :func:`step_key` and :func:`static_key`.

    Raises
    ------
    DumpError
        If the declared tensors break a rule of the format or do not fit on the disk (with the
        numbers), the folder cannot be written, an array is not as declared, a value is not finite
        in its format (with its position), or a declared tensor was not written.
    """

    def __init__(
        self, path: str | Path, *, info: DumpInfo, tensors: Mapping[str, TensorSpec]
    ) -> None:
        self.path = Path(path)
        self.info = info
        try:
            start, self._entries, size = build_header(info.to_metadata(), tensors)
            build_index(self._entries, info)
        except DumpError as error:
            raise DumpError(f"{self.path}: {error}") from None
        #: Bytes of the finished file.
        self.size = size
        self._missing = dict.fromkeys(tensors)
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        self._check_target()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.open(self._temporary, flags, 0o666)
        except OSError as error:
            raise DumpError(f"{self.path}: cannot write: {error.strerror}") from None
        self._put(start, 0)

    def _check_target(self) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise DumpError(f"{self.path}: cannot write: no folder {folder}")
        if self.path.is_dir():
            raise DumpError(f"{self.path}: cannot write: is a folder")
        free = shutil.disk_usage(folder).free
        if self.size > free:
            raise DumpError(
                f"{self.path}: does not fit: the dump needs {size_text(self.size)}, "
                f"{folder} has {size_text(free)} free; capture fewer layers or steps"
            )

    def write(self, key: str, values: NDArray[Any]) -> None:
        """Write one declared tensor, rounded to its declared format (nearest even).

        `values` may have any memory order; they are written in C order.  (``safetensors.numpy``
        0.8 writes an array's memory as it lies, which scrambles one that is not C-contiguous.)
        """
        if key not in self._missing:
            state = "already written" if key in self._entries else "not declared"
            raise DumpError(f"{self.path}: {key}: {state}")
        entry = self._entries[key]
        try:
            data = encode(values, entry.spec)
        except DumpError as error:
            raise DumpError(f"{self.path}: {key}: {error}") from None
        self._put(data, entry.offset)
        del self._missing[key]

    def _put(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        try:
            while view:
                count = os.pwrite(self._file, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            self.abort()
            raise DumpError(
                f"{self.path}: cannot write: {error.strerror} at byte {offset:,} "
                f"of {size_text(self.size)}"
            ) from None

    def finish(self) -> None:
        """Check that everything was written, and give the file its name."""
        if self._missing:
            key = next(iter(self._missing))
            count = len(self._missing)
            self.abort()
            raise DumpError(f"{self.path}: {key}: declared but never written ({count} such keys)")
        os.close(self._file)
        self._file = -1
        try:
            self._temporary.replace(self.path)
        except OSError as error:
            self.abort()
            raise DumpError(f"{self.path}: cannot write: {error.strerror}") from None

    def abort(self) -> None:
        """Leave nothing behind."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.abort()
