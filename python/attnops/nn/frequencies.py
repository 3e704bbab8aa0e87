"""The frequencies of rotary encodings: the standard ones and the scalings of Transformers.

The arithmetic is Transformers', float32 as there, so that a model gets the angles that it was
trained with.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Scaling = Mapping[str, Any]

# What each type of scaling must have; further keys are optional.
_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


def standard(dim: int, base: float | Tensor) -> Tensor:
    """base^(−2j/dim) for the dim/2 pairs."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim
    return 1.0 / base**exponents


class Frequencies:
    """Theta and the factor of cosines and sines, for a scaling as in `rope_scaling`.

    Parameters
    ----------
    dim : the number of rotated features.
    base : the first frequency is 1, the last base^(2/dim − 1).
    scaling : a dict with `rope_type` (or `type`) and the keys of that type, as Transformers'
        `config.rope_scaling` or `config.rope_parameters`; its `rope_theta` is the base if there.
    max_positions : `max_position_embeddings` of the model; dynamic and some factors need it.
    """

    def __init__(
        self, dim: int, base: float, scaling: Scaling | None, max_positions: int | None
    ) -> None:
        scaling = {} if scaling is None else dict(scaling)
        kind = scaling.get("rope_type", scaling.get("type")) or "default"
        if kind not in _NEEDS:
            raise ValueError(f"Rope: scaling must be one of {', '.join(_NEEDS)}; it is {kind!r}")
        for key in _NEEDS[kind]:
            if scaling.get(key) is None:
                raise ValueError(f"Rope: scaling {kind} needs {key}")
        if dim < 2 or dim % 2 != 0:
            raise ValueError(f"Rope: the rotated features must be even and above 0; they are {dim}")
        self.kind: str = kind
        self.dim = dim
        self.base = float(scaling.get("rope_theta") or base)
        self.scaling = scaling
        self.max_positions = max_positions
        original = scaling.get("original_max_position_embeddings")
        if max_positions is None and (
            kind == "dynamic" or (kind in ("yarn", "longrope") and scaling.get("factor") is None)
        ):
            raise ValueError(f"Rope: scaling {kind} needs max_positions")
        self.original: int = original or max_positions or 0
        self.grows = kind in ("dynamic", "longrope")
        self.scale = self._scale()

    def theta(self) -> Tensor:
        """(dim/2) in float32; of dynamic and longrope that of short sequences."""
        if self.kind == "linear":
            return standard(self.dim, self.base) / self.scaling["factor"]
        if self.kind == "yarn":
            return self._yarn()
        if self.kind == "llama3":
            return self._llama3()
        if self.kind == "longrope":
            return self._longrope("short_factor")
        return standard(self.dim, self.base)

    def long_theta(self) -> Tensor:
        """Of longrope, for sequences beyond the original length."""
        return self._longrope("long_factor")

    def dynamic(self, length: int | Tensor) -> Tensor:
        """Of dynamic scaling, for sequences of a length."""
        limit, factor = self.max_positions or 1, self.scaling["factor"]
        longer: Any = length.clamp(min=limit) if isinstance(length, Tensor) else max(length, limit)
        growth = (factor * longer / limit - (factor - 1)) ** (self.dim / (self.dim - 2))
        return standard(self.dim, self.base * growth)

    def _factor(self) -> float:
        given = self.scaling.get("factor")
        return float(given) if given else (self.max_positions or 1) / self.original

    def _scale(self) -> float:
        given = self.scaling.get("attention_factor")
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if given is not None:
            return float(given)
        factor = self._factor()
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(self.original)) if factor > 1 else 1.0

        def of(weight: float) -> float:
            return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

        weight, all_weight = self.scaling.get("mscale"), self.scaling.get("mscale_all_dim")
        return of(weight) / of(all_weight) if weight and all_weight else of(1.0)

    def _yarn(self) -> Tensor:
        """Fast pairs as they are, slow ones interpolated, a ramp between them."""
        theta = standard(self.dim, self.base)

        def pair(rotations: float) -> float:
            """The pair that turns so often within the original length."""
            turns = self.original / (rotations * 2 * math.pi)
            return self.dim * math.log(turns) / (2 * math.log(self.base))

        first = pair(self.scaling.get("beta_fast") or 32)
        last = pair(self.scaling.get("beta_slow") or 1)
        if self.scaling.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.dim - 1)
        last = last + 0.001 if first == last else last
        pairs = torch.arange(self.dim // 2, dtype=torch.float32, device="cpu")
        kept = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
        return 1.0 / (self._factor() / theta) * (1 - kept) + theta * kept

    def _llama3(self) -> Tensor:
        """Short waves as they are, long ones interpolated, smoothly between them."""
        theta = standard(self.dim, self.base)
        factor = self.scaling["factor"]
        low, high = self.scaling["low_freq_factor"], self.scaling["high_freq_factor"]
        turns = self.original * theta / (2 * math.pi)  # within the original length
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - kept) * theta / factor + kept * theta

    def _longrope(self, which: str) -> Tensor:
        factors = torch.tensor(self.scaling[which], dtype=torch.float32, device="cpu")
        if factors.shape != (self.dim // 2,):
            raise ValueError(
                f"Rope: {which} must have {self.dim // 2} numbers, one for each pair; "
                f"it has {factors.numel()}"
            )
        return standard(self.dim, self.base) / factors
