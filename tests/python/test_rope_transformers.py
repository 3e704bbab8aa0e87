"""rope against the functions of transformers: the same numbers for its models' encodings."""

import pytest
import torch

import attnops
from tolerances import float32_angles

pytest.importorskip("transformers")

from transformers import GPTNeoXConfig, LlamaConfig, PhiConfig
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi import modeling_phi as phi
from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl
from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

B, N, H, K, D = 2, 33, 4, 2, 64
LONGEST = 2000  # positions


def make(d: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k as a model's projections give them: (B,H,N,D), heads next to each other."""
    return tuple(torch.randn(B, N, heads, d).transpose(1, 2) for heads in (H, K))


def assert_same(actual, expected, inputs) -> None:
    bound = float32_angles(LONGEST, max(float(x.abs().max()) for x in inputs))
    for result, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, wanted, atol=bound, rtol=0)


def position_ids() -> torch.Tensor:
    """One sequence from its start, and one padded on the left."""
    ids = torch.arange(N).repeat(B, 1)
    ids[1] = (ids[1] - 5).clamp(min=0) + LONGEST - N
    return ids


ROPE_PARAMETERS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama 3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("parameters", ROPE_PARAMETERS.values(), ids=ROPE_PARAMETERS)
def test_llama(parameters):
    config = LlamaConfig(
        hidden_size=H * D,
        num_attention_heads=H,
        num_key_value_heads=K,
        max_position_embeddings=LONGEST,
        rope_parameters=parameters,
    )
    embedding = llama.LlamaRotaryEmbedding(config)
    q, k = make()
    ids = position_ids()
    expected = llama.apply_rotary_pos_emb(q, k, *embedding(q, ids))
    scale = embedding.attention_scaling
    assert (scale != 1) == (parameters["rope_type"] == "yarn")
    actual = attnops.rope(q, k, embedding.inv_freq, positions=ids, scale=scale, layout="bhnd")
    assert_same(actual, expected, (q, k))
    # The cosines and sines that the model has, as a table of one row a token.
    cos, sin = embedding(q, ids)
    half = D // 2
    table = torch.cat([cos[..., :half], sin[..., :half]], -1).reshape(B * N, D)
    rows = torch.arange(B * N).view(B, N)
    assert_same(attnops.rope(q, k, cos_sin=table, positions=rows, layout="bhnd"), expected, (q, k))


def test_gptj():
    rotary_dim = 24
    table = gptj.create_sinusoidal_positions(LONGEST, rotary_dim)
    ids = position_ids()
    sin, cos = table[ids].chunk(2, -1)
    q, k = (x.transpose(1, 2) for x in make())  # (B,N,H,D), as GPT-J has them
    expected = tuple(
        torch.cat(
            [gptj.apply_rotary_pos_emb(x[..., :rotary_dim], sin, cos), x[..., rotary_dim:]], -1
        )
        for x in (q, k)
    )
    theta = 1.0 / (10000 ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64) / rotary_dim))
    actual = attnops.rope(q, k, theta, positions=ids, rotary_dim=rotary_dim, interleaved=True)
    assert_same(actual, expected, (q, k))


def test_gpt_neox():
    config = GPTNeoXConfig(hidden_size=H * D, num_attention_heads=H)
    embedding = gpt_neox.GPTNeoXRotaryEmbedding(config)
    q, k = make()
    ids = position_ids()
    cos, sin = embedding(q, ids)
    rotary_dim = cos.shape[-1]
    assert rotary_dim == D // 4
    expected = gpt_neox.apply_rotary_pos_emb(q, k, cos, sin)
    actual = attnops.rope(
        q, k, embedding.inv_freq, positions=ids, rotary_dim=rotary_dim, layout="bhnd"
    )
    assert_same(actual, expected, (q, k))


def test_phi():
    config = PhiConfig(hidden_size=H * D, num_attention_heads=H)
    embedding = phi.PhiRotaryEmbedding(config)
    q, k = make()
    ids = position_ids()
    cos, sin = embedding(q, ids)
    rotary_dim = cos.shape[-1]
    assert rotary_dim == D // 2
    rotated = phi.apply_rotary_pos_emb(q[..., :rotary_dim], k[..., :rotary_dim], cos, sin)
    expected = [
        torch.cat([turned, x[..., rotary_dim:]], -1)
        for turned, x in zip(rotated, (q, k), strict=True)
    ]
    actual = attnops.rope(
        q, k, embedding.inv_freq, positions=ids, rotary_dim=rotary_dim, layout="bhnd"
    )
    assert_same(actual, expected, (q, k))


@pytest.mark.parametrize("model", ["qwen2_vl", "qwen3_vl"])
def test_qwen_vl(model):
    """Sections of pairs with the positions of time, height and width, in both orders."""
    d, interleaved = 128, model == "qwen3_vl"
    sections = (24, 20, 20) if interleaved else (16, 24, 24)
    parameters = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": list(sections),
    }
    sizes = {"hidden_size": H * d, "num_attention_heads": H, "num_key_value_heads": K}
    if interleaved:
        config = configuration_qwen3_vl.Qwen3VLTextConfig(
            head_dim=d, rope_parameters=parameters, **sizes
        )
        embedding = modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding(config)
        apply = modeling_qwen3_vl.apply_rotary_pos_emb
    else:
        config = configuration_qwen2_vl.Qwen2VLTextConfig(rope_parameters=parameters, **sizes)
        embedding = modeling_qwen2_vl.Qwen2VLRotaryEmbedding(config)
        apply = modeling_qwen2_vl.apply_rotary_pos_emb
    q, k = make(d)
    ids = torch.randint(0, LONGEST, (3, B, N))
    expected = apply(q, k, *embedding(q, ids))
    actual = attnops.rope(
        q,
        k,
        embedding.inv_freq,
        positions=ids,
        sections=sections,
        sections_interleaved=interleaved,
        layout="bhnd",
    )
    assert_same(actual, expected, (q, k))
