"""The frequencies of Rope beside those of Transformers, for every scaling."""

from types import SimpleNamespace

import pytest
import torch

from attnops.nn import Rope
from tolerances import FREQUENCIES, float32_angles

pytest.importorskip("transformers")

from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

B, H, D, LONGEST = 2, 4, 32, 64
PAIRS = D // 2
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn of mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
        "beta_fast": 8,
        "beta_slow": 2,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 16,
        "short_factor": [1 + 0.1 * i for i in range(PAIRS)],
        "long_factor": [2 + 0.3 * i for i in range(PAIRS)],
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}
each_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)


def config_of(scaling: dict) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=H * D,
        num_attention_heads=H,
        max_position_embeddings=LONGEST,
        rope_parameters={"rope_theta": 5000.0, **scaling},
    )


@each_scaling
def test_theta_and_scale(scaling):
    config = config_of(scaling)
    expected = llama.LlamaRotaryEmbedding(config)
    rope = Rope.from_config(config)
    torch.testing.assert_close(rope.theta, expected.inv_freq, **FREQUENCIES)
    assert rope.scale == pytest.approx(expected.attention_scaling)


@each_scaling
@pytest.mark.parametrize("length", [10, 3 * LONGEST])
def test_encoding(scaling, length):
    """Short sequences and those that are longer than the model's, by offset and by positions."""
    config = config_of(scaling)
    embedding = llama.LlamaRotaryEmbedding(config)
    rope = Rope.from_config(config, layout="bhnd")
    q, k = torch.randn(B, H, length, D), torch.randn(B, 1, length, D)
    ids = torch.arange(length).repeat(B, 1)
    expected = llama.apply_rotary_pos_emb(q, k, *embedding(q, ids))
    bound = float32_angles(length, float(q.abs().max()) * embedding.attention_scaling)
    for given in ({}, {"positions": ids}):
        for actual, wanted in zip(rope(q, k, **given), expected, strict=True):
            torch.testing.assert_close(actual, wanted, atol=bound, rtol=0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_lengths_that_are_tensors(kind):
    rope = Rope.from_config(config_of(SCALINGS[kind]))
    q = torch.randn(B, 5, H, D)
    offsets = torch.tensor([0, 2 * LONGEST])
    by_offset = rope(q, q, offset=offsets)[0]
    positions = torch.arange(5) + offsets[:, None]
    assert torch.equal(by_offset, rope(q, q, positions=positions)[0])
    long = rope.theta_of(5, None, 2 * LONGEST)
    assert not torch.equal(long, rope.theta_of(5))
    torch.testing.assert_close(rope.theta_of(5, positions), long, **FREQUENCIES)
    compiled = torch.compile(rope, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, q, positions=positions)[0], by_offset)


def test_old_names_of_a_configuration():
    """`rope_scaling` with `type`, and `rope_theta` beside it."""

    old = SimpleNamespace(
        hidden_size=H * D,
        num_attention_heads=H,
        max_position_embeddings=LONGEST,
        rope_theta=5000.0,
        rope_scaling={"type": "linear", "factor": 4.0},
        partial_rotary_factor=0.5,
    )
    rope = Rope.from_config(old)
    assert rope.rotary_dim == D // 2
    expected = 1 / 5000.0 ** (torch.arange(D // 4) / (D // 4)) / 4
    torch.testing.assert_close(rope.theta, expected, **FREQUENCIES)


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ({"rope_type": "linear"}, "scaling linear needs factor"),
        ({"rope_type": "other"}, "scaling must be one of default, linear, .*'other'"),
        ({"rope_type": "dynamic", "factor": 2.0}, "scaling dynamic needs max_positions"),
        (SCALINGS["longrope"] | {"long_factor": [1.0], "factor": 2.0}, "long_factor must have 16"),
    ],
)
def test_errors(scaling, text):
    with pytest.raises(ValueError, match=f"^Rope: {text}"):
        Rope(D, scaling=scaling)
