"""Shape of the shipped Diffusion Transformer: one description for PyTorch and NumPy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DiTSpec:
    """Hyper-parameters of a class-conditional DiT with adaLN-Zero blocks.

    Parameters
    ----------
    hidden:
        Width of a token vector, in channels.
    depth:
        Number of transformer blocks.
    heads:
        Attention heads; must divide `hidden`.
    patch:
        Side of a square patch, in pixels; must divide `image`.
    image:
        Side of the square image, in pixels.
    channels:
        Colour channels of the image (1: grey).
    classes:
        Real classes. The class table has one more row, the null class, for
        classifier-free guidance.
    mlp_ratio:
        Width of the MLP over `hidden`.
    frequency:
        Width of the sinusoidal timestep embedding before its MLP; even.

    Raises
    ------
    ValueError
        If a rule above is broken; the message states the rule and the value.
    """

    hidden: int = 128
    depth: int = 4
    heads: int = 4
    patch: int = 2
    image: int = 32
    channels: int = 1
    classes: int = 10
    mlp_ratio: int = 4
    frequency: int = 256

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.hidden % self.heads:
            raise ValueError(f"heads must divide hidden {self.hidden}, got {self.heads}")
        if self.hidden % 4:
            raise ValueError(f"hidden must be a multiple of 4, got {self.hidden}")
        if self.image % self.patch:
            raise ValueError(f"patch must divide image {self.image}, got {self.patch}")
        if self.frequency % 2:
            raise ValueError(f"frequency must be even, got {self.frequency}")

    @property
    def grid(self) -> int:
        """Patches along one side of the image."""
        return self.image // self.patch

    @property
    def tokens(self) -> int:
        """Tokens of one image."""
        return self.grid**2

    @property
    def patch_dim(self) -> int:
        """Values in one patch: the input width of `patch_embed`, the output of `final.linear`."""
        return self.patch**2 * self.channels

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.hidden // self.heads

    @property
    def mlp_hidden(self) -> int:
        """Channels between the two layers of a block's MLP."""
        return self.mlp_ratio * self.hidden

    @property
    def null_class(self) -> int:
        """Row of the class table that stands for "no class"."""
        return self.classes

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Every linear layer in order of execution: name -> (out, in)."""
        h = self.hidden
        layers = {
            "patch_embed": (h, self.patch_dim),
            "t_embed.fc1": (h, self.frequency),
            "t_embed.fc2": (h, h),
        }
        for i in range(self.depth):
            block = f"blocks.{i}"
            layers[f"{block}.adaln"] = (6 * h, h)
            layers[f"{block}.attn.qkv"] = (3 * h, h)
            layers[f"{block}.attn.proj"] = (h, h)
            layers[f"{block}.mlp.fc1"] = (self.mlp_hidden, h)
            layers[f"{block}.mlp.fc2"] = (h, self.mlp_hidden)
        layers["final.adaln"] = (2 * h, h)
        layers["final.linear"] = (self.patch_dim, h)
        return layers

    @property
    def conditioning(self) -> frozenset[str]:
        """Linear layers fed by the conditioning vector: one row a sample, not one a token."""
        return frozenset(n for n in self.linears if n.startswith("t_embed") or "adaln" in n)

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a weights file: name -> shape."""
        shapes: dict[str, tuple[int, ...]] = {"y_embed.weight": (self.classes + 1, self.hidden)}
        for name, (out, inner) in self.linears.items():
            shapes[f"{name}.weight"] = (out, inner)
            shapes[f"{name}.bias"] = (out,)
        return shapes

    @property
    def parameters(self) -> int:
        """Trained values in all."""
        total = 0
        for shape in self.tensors.values():
            count = 1
            for side in shape:
                count *= side
            total += count
        return total


DIGITS = DiTSpec()
"""The shipped model: 32x32 grey digits, 256 tokens."""
