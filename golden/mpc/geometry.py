"""Sizes of the core that follow from several sections of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from dstar.gen.config import Config, ConfigError

#: Bytes of a channel's parameters: scale (bfloat16), bias (binary16).
PARAMETER_BYTES = 4
#: Bytes of a binary16 number.
HALF_BYTES = 2


@dataclass(frozen=True)
class Geometry:
    """Sizes of the unified buffer's words and of what they hold.

    A word of the buffer is one token vector, ``array.rows`` binary16 values.

    Raises
    ------
    ConfigError
        If a configuration, legal for a single unit, does not make a core.
    """

    cfg: Config

    def __post_init__(self) -> None:
        array, core = self.cfg.array, self.cfg.core
        beats, rest = divmod(16 * array.rows, core.axi_data_bits)
        if rest or not beats or beats & (beats - 1):
            raise ConfigError(
                f"core.axi_data_bits must divide a token vector's 16 * array.rows "
                f"({16 * array.rows}) bits into a power of two of beats, got {core.axi_data_bits}"
            )
        if array.cols > self.word_bytes:
            raise ConfigError(
                f"array.cols must be at most 2 * array.rows ({self.word_bytes}) in a core, "
                f"got {array.cols}"
            )
        if core.columns % array.cols:
            raise ConfigError(
                f"core.columns must be a multiple of array.cols ({array.cols}), got {core.columns}"
            )

    @property
    def word_bytes(self) -> int:
        """Bytes of a word; a power of two, to which all memory addresses are aligned."""
        return HALF_BYTES * self.cfg.array.rows

    @property
    def beats(self) -> int:
        """AXI beats of a word."""
        return self.word_bytes // self.cfg.core.axi_bytes

    @property
    def words(self) -> int:
        """Words of the buffer."""
        return self.cfg.core.words

    @property
    def rows_per_word(self) -> int:
        """Weight rows (``array.cols`` bytes) of a word, from its first byte on."""
        return self.word_bytes // self.cfg.array.cols

    @property
    def weight_channels(self) -> int:
        """Channels whose weights the MPU takes at once: a word, or a part of it without rest."""
        rows = self.rows_per_word
        return min(rows & -rows, 1 << max(0, self.cfg.numeric.channel_bits - 1))

    @property
    def parameters_per_word(self) -> int:
        """Output channels whose parameters a word holds."""
        return self.word_bytes // PARAMETER_BYTES

    @property
    def parameter_words(self) -> int:
        """Words of a column tile's parameters."""
        return -(-self.cfg.array.cols // self.parameters_per_word)

    @property
    def column_tiles(self) -> int:
        """Column tiles whose sums the output path keeps."""
        return self.cfg.core.columns // self.cfg.array.cols

    def weight_words(self, channels: int) -> int:
        """Words of a weight tile of so many input channels."""
        return -(-channels // self.rows_per_word)
