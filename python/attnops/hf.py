"""attnops' rotary encoding in a loaded model of Transformers, by one call.

The encoding is exact at far positions, in 16-bit models too, and one pass over queries and keys. It
is a few percent of a model's time: no more than that can be gained.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from types import MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from attnops.nn.rope import Rope
from attnops.rope import rope

# Modules that make cosines and sines for all layers, which apply_rotary_pos_emb of the same file
# applies.
_EMBEDDINGS = (
    "LlamaRotaryEmbedding",
    "MistralRotaryEmbedding",
    "Qwen2RotaryEmbedding",
    "Qwen3RotaryEmbedding",
    "PhiRotaryEmbedding",
    "GPTNeoXRotaryEmbedding",
)
# Attention with a table of its own in each layer.
_ATTENTIONS = ("GPTJAttention",)
_MODELS = "Llama, Mistral, Qwen2, Qwen3, Phi, GPT-NeoX and GPT-J"
_ROPE = "attnops_rope"  # the name of the added module


@dataclass(frozen=True)
class Change:
    """A module that has attnops' encoding."""

    name: str  # in the model
    kind: str  # its class
    what: str  # the encoding


@dataclass(frozen=True)
class Report:
    """What patch changed; printed, a line for each module."""

    model: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        count = len(self.changes)
        lines = [f"{self.model}: {count} module{'s' if count != 1 else ''} with attnops' rope"]
        lines += [f"  {c.name or '(the model)'} ({c.kind}): {c.what}" for c in self.changes]
        return "\n".join(lines)


class _Angles:
    """What apply_rotary_pos_emb gets in place of cosines and sines."""

    def __init__(self, theta: Tensor, positions: Tensor, scale: float, rotary_dim: int) -> None:
        self.theta = theta
        self.positions = positions
        self.scale = scale
        self.rotary_dim = rotary_dim


def patch(model: nn.Module) -> Report:
    """Give a Transformers model attnops' rotary encoding, in place.

    Llama, Mistral, Qwen2, Qwen3, Phi, GPT-NeoX and GPT-J, alone or as part of a larger model, with
    every scaling of `rope_parameters` that attnops.nn.Rope has. Logits are the same to rounding.
    The frequencies are float32 also where the model was converted to 16 bits. With dynamic scaling
    they depend on the sequence at hand only, not on longer ones before it. A model that is patched
    already stays so.

    Parameters
    ----------
    model : torch.nn.Module
        Of the library transformers.

    Returns
    -------
    Report
        The modules that have the encoding, as `changes` and printed.

    Raises
    ------
    ImportError
        Without transformers.
    ValueError
        For a model that has none of these encodings; nothing is changed.

    Examples
    --------
    >>> import attnops.hf
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(
    ...     hidden_size=64,
    ...     intermediate_size=64,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=2,
    ...     vocab_size=32,
    ... )
    >>> model = LlamaForCausalLM(config)
    >>> print(attnops.hf.patch(model))
    LlamaForCausalLM: 1 module with attnops' rope
      model.rotary_emb (LlamaRotaryEmbedding): 16 pairs, halves, base 10000, scaling default
    >>> _ = attnops.hf.unpatch(model)
    """
    made = [(name, module, _rope_of(name, module)) for name, module in _encodings(model)]
    if not made:
        name = type(model).__name__
        raise ValueError(f"attnops.hf.patch: {name} has none of the rotary encodings of {_MODELS}")
    for _, module, encoding in made:
        if not _is_patched(module):
            module.add_module(_ROPE, encoding)
            forward = _gptj_forward if _is_attention(module) else _embedding_forward
            module.forward = MethodType(forward, module)
        if not _is_attention(module):
            _redirect(sys.modules[type(module).__module__])
    return _report(model, made)


def unpatch(model: nn.Module) -> Report:
    """Give a patched model its own encoding back.

    Parameters
    ----------
    model : torch.nn.Module
        Patched or not.

    Returns
    -------
    Report
        What was changed back, nothing included.

    Examples
    --------
    >>> import torch, attnops.hf
    >>> attnops.hf.unpatch(torch.nn.Linear(2, 2)).changes
    ()
    """
    found = [
        (name, module, getattr(module, _ROPE))
        for name, module in _encodings(model)
        if _is_patched(module)
    ]
    for _, module, _ in found:
        del module.forward
        delattr(module, _ROPE)
    return _report(model, found)


def _report(model: nn.Module, found: list[tuple[str, nn.Module, Rope]]) -> Report:
    changes = []
    for name, module, encoding in found:
        frequencies = encoding.frequencies
        pairs = "neighbours" if encoding.interleaved else "halves"
        what = (
            f"{encoding.rotary_dim // 2} pairs, {pairs}, base {frequencies.base:g}, "
            f"scaling {frequencies.kind}"
        )
        changes.append(Change(name, type(module).__name__, what))
    return Report(type(model).__name__, tuple(changes))


def _encodings(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules to change, by name."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"attnops.hf.patch: model must be a torch.nn.Module; it is {type(model).__name__}"
        )
    if sys.modules.get("transformers", model) is None or find_spec("transformers") is None:
        raise ImportError(
            "attnops.hf needs the package transformers, which is not installed: "
            "pip install transformers"
        )
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__module__.startswith("transformers.models.")
        and type(module).__name__ in _EMBEDDINGS + _ATTENTIONS
    ]


def _is_attention(module: nn.Module) -> bool:
    return type(module).__name__ in _ATTENTIONS


def _is_patched(module: nn.Module) -> bool:
    return _ROPE in module._modules


def _rope_of(name: str, module: nn.Module) -> Rope:
    """The encoding of a module, which must be that of its configuration."""
    if _is_attention(module):
        rotary_dim, head_dim = module.rotary_dim, int(module.head_dim)  # type: ignore[arg-type]
        if rotary_dim is None:
            raise ValueError(f"attnops.hf.patch: {name} has no rotary_dim in its configuration")
        return Rope(head_dim, rotary_dim=int(rotary_dim), interleaved=True)  # type: ignore[arg-type]
    encoding = Rope.from_config(module.config, layout="bhnd")
    if not encoding.frequencies.grows:
        own: Tensor = module.inv_freq  # type: ignore[assignment]
        given = own.detach().float()
        close = 2.0**-20 if own.dtype.itemsize == 4 else 2.0**-7
        if given.shape != encoding.theta.shape or not given.allclose(encoding.theta, rtol=close):
            raise ValueError(
                f"attnops.hf.patch: inv_freq of {name} is not what its configuration says"
            )
    return encoding


def _positions(position_ids: Tensor) -> Tensor:
    """(B,N), or (N) where one row serves all."""
    return position_ids[0] if position_ids.shape[0] == 1 else position_ids


def _embedding_forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[_Angles, _Angles]:
    """In place of a rotary embedding's forward: angles, and not their cosines and sines."""
    encoding: Rope = self.attnops_rope
    positions = _positions(position_ids)
    theta = encoding.theta_of(positions.shape[-1], positions)
    angles = _Angles(theta, positions, encoding.scale, encoding.rotary_dim)
    return angles, angles


def _redirect(modeling: ModuleType) -> None:
    """Makes a file's apply_rotary_pos_emb know angles; cosines and sines are left to the old one.

    It stays so when a model is unpatched, since a copy of the model may still need it.
    """
    original: Callable[..., tuple[Tensor, Tensor]] = modeling.apply_rotary_pos_emb
    if getattr(original, "knows_attnops_angles", False):
        return

    @wraps(original)
    def apply(q: Tensor, k: Tensor, cos: Any, sin: Any, *args: Any, **kwargs: Any):
        if not isinstance(cos, _Angles):
            return original(q, k, cos, sin, *args, **kwargs)
        heads_axis = args[0] if args else kwargs.get("unsqueeze_dim", 1)
        return rope(
            q,
            k,
            cos.theta,
            positions=cos.positions,
            rotary_dim=cos.rotary_dim,
            scale=1 if cos.scale == 1 else cos.scale,
            layout="bhnd" if heads_axis == 1 else "bnhd",
        )

    apply.knows_attnops_angles = True  # type: ignore[attr-defined]
    modeling.apply_rotary_pos_emb = apply  # type: ignore[attr-defined]


def _gptj_forward(
    self: Any,
    hidden_states: Tensor,
    layer_past: Any = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    use_cache: bool | None = False,
    output_attentions: bool | None = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """GPT-J's attention, with queries and keys rotated where they are (B,N,H,D)."""
    query, key, value = (
        self._split_heads(projection(hidden_states), self.num_attention_heads, self.head_dim, split)
        for projection, split in ((self.q_proj, True), (self.k_proj, True), (self.v_proj, False))
    )
    positions = None if position_ids is None else _positions(position_ids)
    query, key = self.attnops_rope(query, key, positions=positions)
    query, key = query.permute(0, 2, 1, 3), key.permute(0, 2, 1, 3)
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    out, weights = self._attn(query, key, value, attention_mask)
    out = self._merge_heads(out, self.num_attention_heads, self.head_dim)
    return self.resid_dropout(self.out_proj(out)), weights
