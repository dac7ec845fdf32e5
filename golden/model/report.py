"""What a wrapped model did: bits, skipped work and caches, by layer and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .method import AttentionStats, LinearStats, Moment


@dataclass
class LinearTotals:
    """Sums over calls of linear layers.

    ``values``: activation values multiplied.  ``bits``: sum of their bits.  ``skipped``: of them
    at 0 bits.  ``macs``: products of a value and a weight.  ``mac_bits``: sum of their values'
    bits.  ``projected``, ``omitted``: products of Q and K projections that were computed, and
    that were not because scores were reused.  ``nonfinite``, ``saturated``: calls with the flag.
    ``histogram``: as in :class:`~dstar.golden.model.method.LinearStats`, or None.
    """

    values: int = 0
    bits: float = 0.0
    skipped: int = 0
    macs: int = 0
    mac_bits: float = 0.0
    projected: int = 0
    omitted: int = 0
    nonfinite: int = 0
    saturated: int = 0
    histogram: Tensor | None = None

    @property
    def average_bits(self) -> float:
        """Mean bits of a value; skipped ones count as 0.  0 if there were none."""
        return self.bits / self.values if self.values else 0.0

    @property
    def bits_per_mac(self) -> float:
        """Mean bits weighed by the weights that each value meets."""
        return self.mac_bits / self.macs if self.macs else 0.0

    @property
    def skipped_fraction(self) -> float:
        """Share of the values at 0 bits."""
        return self.skipped / self.values if self.values else 0.0

    def merge(self, other: LinearTotals) -> None:
        """Add other sums to these."""
        for name in self.__dataclass_fields__:
            if name != "histogram":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.histogram is not None:
            old = self.histogram
            self.histogram = other.histogram if old is None else old + other.histogram


@dataclass
class AttentionTotals:
    """Sums over calls of attention products, in multiply-accumulates and bytes.

    ``score_macs``, ``value_macs``: of QK and PV as computed; ``dense_score_macs``,
    ``dense_value_macs``: without pruning and reuse.  ``scores``, ``computed``, ``used``,
    ``written``, ``read``: as in :class:`~dstar.golden.model.method.AttentionStats`.  ``cached``:
    bytes held after the last call.
    """

    score_macs: int = 0
    value_macs: int = 0
    dense_score_macs: int = 0
    dense_value_macs: int = 0
    scores: int = 0
    computed: int = 0
    used: int = 0
    written: float = 0.0
    read: float = 0.0
    cached: float = 0.0

    def merge(self, other: AttentionTotals) -> None:
        """Add other sums to these."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class LayerReport:
    """Sums of one linear layer for each step."""

    name: str
    steps: dict[int, LinearTotals] = field(default_factory=dict)

    def add(self, moment: Moment, macs: int, stats: LinearStats, score: int = 0) -> None:
        """Count one call; ``score``: of its macs, those that only attention scores need."""
        self._at(moment).merge(
            LinearTotals(
                values=stats.values,
                bits=stats.bits,
                skipped=stats.skipped,
                macs=macs,
                mac_bits=stats.bits / stats.values * macs if stats.values else 0.0,
                projected=score,
                nonfinite=int(stats.nonfinite),
                saturated=int(stats.saturated),
                histogram=stats.histogram,
            )
        )

    def skip(self, moment: Moment, macs: int) -> None:
        """Count a projection that was not computed."""
        self._at(moment).omitted += macs

    def _at(self, moment: Moment) -> LinearTotals:
        return self.steps.setdefault(moment.step, LinearTotals())

    @property
    def total(self) -> LinearTotals:
        """Sums over all steps."""
        return _sum(LinearTotals(), self.steps.values())


@dataclass
class AttentionReport:
    """Sums of one attention layer for each step."""

    name: str
    steps: dict[int, AttentionTotals] = field(default_factory=dict)

    def add(self, moment: Moment, stats: AttentionStats, d: int, d_v: int) -> None:
        """Count one call; head dimensions of q and k, and of v."""
        self.steps.setdefault(moment.step, AttentionTotals()).merge(
            AttentionTotals(
                score_macs=stats.computed * d,
                value_macs=stats.used * d_v,
                dense_score_macs=stats.scores * d,
                dense_value_macs=stats.scores * d_v,
                scores=stats.scores,
                computed=stats.computed,
                used=stats.used,
                written=stats.written,
                read=stats.read,
                cached=stats.cached,
            )
        )

    @property
    def total(self) -> AttentionTotals:
        """Sums over all steps; ``cached`` is then a sum over steps too."""
        return _sum(AttentionTotals(), self.steps.values())


def _sum(total: Any, parts: Iterable[Any]) -> Any:
    for part in parts:
        total.merge(part)
    return total


@dataclass(frozen=True, kw_only=True)
class Report:
    """Statistics of a wrapped model since the last reset.

    ``linear``, ``attention``: by layer name.  ``silent``: wrapped layers that never ran.
    ``linear_cache_bytes``: what the linear layers hold now.
    """

    linear: Mapping[str, LayerReport]
    attention: Mapping[str, AttentionReport]
    silent: tuple[str, ...]
    linear_cache_bytes: int

    @property
    def total(self) -> LinearTotals:
        """Sums over all linear layers and steps."""
        return _sum(LinearTotals(), (layer.total for layer in self.linear.values()))

    @property
    def attention_total(self) -> AttentionTotals:
        """Sums over all attention layers and steps."""
        return _sum(AttentionTotals(), (layer.total for layer in self.attention.values()))

    @property
    def average_bits(self) -> float:
        """Mean bits of the activation values of all wrapped linear layers and steps."""
        return self.total.average_bits

    @property
    def skipped_fraction(self) -> float:
        """Share of those values at 0 bits."""
        return self.total.skipped_fraction

    @property
    def pruned_fraction(self) -> float:
        """Share of the attention scores that masks prune, reuse aside."""
        a = self.attention_total
        return 1 - a.used / a.scores if a.scores else 0.0

    @property
    def attention_fraction_computed(self) -> float:
        """Multiply-accumulates of Q and K projections, QK and PV over the dense ones; 1 if none."""
        linear, a = self.total, self.attention_total
        done = linear.projected + a.score_macs + a.value_macs
        dense = linear.projected + linear.omitted + a.dense_score_macs + a.dense_value_macs
        return done / dense if dense else 1.0

    @property
    def score_cache_bytes_per_step(self) -> float:
        """Mean bytes of scores that move to and from the cache in a step, all layers."""
        steps = {step for layer in self.attention.values() for step in layer.steps}
        total = self.attention_total
        return (total.written + total.read) / len(steps) if steps else 0.0

    @property
    def score_cache_bytes(self) -> float:
        """Largest number of bytes of scores held at once, all layers."""
        held: dict[int, float] = {}
        for layer in self.attention.values():
            for step, totals in layer.steps.items():
                held[step] = held.get(step, 0.0) + totals.cached
        return max(held.values(), default=0.0)

    def bits(self) -> dict[str, dict[int, float]]:
        """Average bits by layer and step."""
        return {
            name: {step: t.average_bits for step, t in sorted(layer.steps.items())}
            for name, layer in self.linear.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: totals, and by layer."""
        total = self.total
        return {
            "average_bits": self.average_bits,
            "bits_per_mac": total.bits_per_mac,
            "skipped_fraction": self.skipped_fraction,
            "pruned_fraction": self.pruned_fraction,
            "attention_fraction_computed": self.attention_fraction_computed,
            "score_cache_bytes": self.score_cache_bytes,
            "score_cache_bytes_per_step": self.score_cache_bytes_per_step,
            "linear_cache_bytes": self.linear_cache_bytes,
            "nonfinite": total.nonfinite,
            "saturated": total.saturated,
            "silent": list(self.silent),
            "layers": {
                name: {
                    "average_bits": layer.total.average_bits,
                    "skipped_fraction": layer.total.skipped_fraction,
                    "bits": {str(s): t.average_bits for s, t in sorted(layer.steps.items())},
                }
                for name, layer in self.linear.items()
            },
        }

    def __str__(self) -> str:
        rows = [f"{'layer':40}{'bits':>7}{'skipped':>9}{'nonfinite':>11}{'saturated':>11}"]
        for name, layer in self.linear.items():
            rows.append(_row(name, layer.total))
        rows.append(_row("all linear layers", self.total))
        if self.attention:
            rows.append(
                f"attention: {self.attention_fraction_computed:.1%} of the dense work "
                f"(Q, K, QK, PV), {self.pruned_fraction:.1%} of the scores pruned; score cache "
                f"{self.score_cache_bytes:,.0f} bytes, {self.score_cache_bytes_per_step:,.0f} "
                "moved a step"
            )
        rows.append(f"linear caches: {self.linear_cache_bytes:,} bytes")
        if self.silent:
            rows.append(f"never ran: {', '.join(self.silent)}")
        return "\n".join(rows)


def _row(name: str, total: LinearTotals) -> str:
    return (
        f"{name:40}{total.average_bits:7.2f}{total.skipped_fraction:9.1%}"
        f"{total.nonfinite:11}{total.saturated:11}"
    )
