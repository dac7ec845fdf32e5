"""The Diffusion Transformer in PyTorch: DiT with adaLN-Zero (Peebles and Xie, 2023).

The network predicts the velocity of a rectified flow: with x_t = (1 - t) x_0 + t eps, it
estimates eps - x_0. Module names are the tensor names of the weights file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .forward import TIME_SCALE, Floats, Ints, Weights, frequencies, position_embedding
from .sampler import DEFAULT_STEPS, integrate
from .spec import DIGITS, DiTSpec


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Adaptive layer norm: x (batch, tokens, hidden), shift and scale (batch, hidden)."""
    x = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
    return torch.addcmul(shift[:, None], x, 1.0 + scale[:, None])


class MLP(nn.Module):
    """Two linear layers, `fc1` and `fc2`, around an activation."""

    def __init__(self, width: int, inner: int, out: int, act: nn.Module) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.act = act
        self.fc2 = nn.Linear(inner, out)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self.act(self.fc1(x)))
        return y


class Attention(nn.Module):
    """Multi-head self-attention over (batch, tokens, hidden), with one fused `qkv` layer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        o = functional.scaled_dot_product_attention(q, k, v)
        y: Tensor = self.proj(o.transpose(1, 2).reshape(batch, tokens, hidden))
        return y


class Block(nn.Module):
    """One adaLN-Zero block: attention and MLP, each with its own shift, scale and gate."""

    def __init__(self, spec: DiTSpec) -> None:
        super().__init__()
        self.adaln = nn.Linear(spec.hidden, 6 * spec.hidden)
        self.attn = Attention(spec.hidden, spec.heads)
        self.mlp = MLP(spec.hidden, spec.mlp_hidden, spec.hidden, nn.GELU(approximate="tanh"))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """x (batch, tokens, hidden), activated conditioning c (batch, hidden)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(c).chunk(6, dim=-1)
        x = torch.addcmul(x, gate1[:, None], self.attn(modulate(x, shift1, scale1)))
        return torch.addcmul(x, gate2[:, None], self.mlp(modulate(x, shift2, scale2)))


class Final(nn.Module):
    """The last adaptive layer norm and the projection back to patches."""

    def __init__(self, spec: DiTSpec) -> None:
        super().__init__()
        self.adaln = nn.Linear(spec.hidden, 2 * spec.hidden)
        self.linear = nn.Linear(spec.hidden, spec.patch_dim)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaln(c).chunk(2, dim=-1)
        y: Tensor = self.linear(modulate(x, shift, scale))
        return y


class DiT(nn.Module):
    """Velocity predictor of a rectified flow, conditioned on time and class.

    Parameters
    ----------
    spec:
        Shape of the network.
    """

    pos: Tensor
    freqs: Tensor

    def __init__(self, spec: DiTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embed = nn.Linear(spec.patch_dim, spec.hidden)
        self.t_embed = MLP(spec.frequency, spec.hidden, spec.hidden, nn.SiLU())
        self.y_embed = nn.Embedding(spec.classes + 1, spec.hidden)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.depth))
        self.final = Final(spec)
        pos = torch.tensor(position_embedding(spec.hidden, spec.grid).tolist())
        freqs = torch.tensor(frequencies(spec.frequency // 2).tolist())
        self.register_buffer("pos", pos, persistent=False)
        self.register_buffer("freqs", freqs, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """DiT's initialisation: every block starts as the identity, the output as zero."""
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)
                if name.endswith("adaln") or name == "final.linear":
                    nn.init.zeros_(layer.weight)
                elif name.startswith("t_embed"):
                    nn.init.normal_(layer.weight, std=0.02)
                else:
                    nn.init.xavier_uniform_(layer.weight)
        nn.init.normal_(self.y_embed.weight, std=0.02)

    def _patches(self, x: Tensor) -> Tensor:
        """Images (batch, channels, side, side) to (batch, tokens, patch_dim)."""
        s = self.spec
        x = x.view(-1, s.channels, s.grid, s.patch, s.grid, s.patch)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, s.tokens, s.patch_dim)

    def _images(self, x: Tensor) -> Tensor:
        """The inverse of `_patches`."""
        s = self.spec
        x = x.view(-1, s.grid, s.grid, s.patch, s.patch, s.channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, s.channels, s.image, s.image)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Predict the velocity.

        Parameters
        ----------
        x:
            Noised images (batch, channels, side, side).
        t:
            Times (batch,) in [0, 1]; 1 is pure noise.
        y:
            Classes (batch,), `spec.null_class` for none.

        Returns
        -------
        Velocity, of the shape of `x`.
        """
        h = self.patch_embed(self._patches(x)) + self.pos
        angles = (t * float(TIME_SCALE))[:, None] * self.freqs
        c = self.t_embed(torch.cat([angles.cos(), angles.sin()], dim=-1))
        c = functional.silu(c + self.y_embed(y))
        for block in self.blocks:
            h = block(h, c)
        return self._images(self.final(h, c))


def load_model(weights: Weights, spec: DiTSpec = DIGITS) -> DiT:
    """A model in evaluation mode with tensors as `weights.load_weights` gives them."""
    model = DiT(spec)
    model.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in weights.items()})
    return model.eval()


def sample(
    model: DiT,
    *,
    classes: Sequence[int],
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    guidance: float = 1.0,
) -> Floats:
    """`sampler.sample` with the network in PyTorch; it starts from the same noise."""

    @torch.inference_mode()
    def predict(x: Floats, t: Floats, y: Ints) -> Floats:
        v: Tensor = model(torch.from_numpy(x), torch.from_numpy(t), torch.from_numpy(y))
        return v.numpy()

    return integrate(
        predict, classes=classes, steps=steps, seed=seed, guidance=guidance, spec=model.spec
    )
