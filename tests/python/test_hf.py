"""attnops.hf: models of Transformers give the same logits and the same text with our encoding."""

import copy
import sys

import pytest
import torch
from torch import nn

import attnops.hf

pytest.importorskip("transformers")

import transformers

from tolerances import HF_LOGITS

SIZES = {"vocab_size": 61, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
GROUPED = SIZES | {"num_key_value_heads": 2, "intermediate_size": 96}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "llama3": lambda: transformers.LlamaConfig(**GROUPED, rope_parameters=LLAMA3),
    "llama, yarn": lambda: transformers.LlamaConfig(**GROUPED, rope_parameters=YARN),
    "llama, dynamic": lambda: transformers.LlamaConfig(
        **GROUPED, rope_parameters=DYNAMIC, max_position_embeddings=12
    ),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=8),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=32),
    "phi": lambda: transformers.PhiConfig(**SIZES, intermediate_size=96),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SIZES, intermediate_size=96),
    "gptj": lambda: transformers.GPTJConfig(
        vocab_size=61, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_inner=96
    ),
}
each_model = pytest.mark.parametrize("name", CONFIGS)


def make(name: str) -> nn.Module:
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
    for parameter in model.parameters():  # large enough for positions to matter
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.15)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model.eval()


def padded_batch() -> dict[str, torch.Tensor]:
    """Three prompts of different lengths, padded on the left."""
    ids = torch.randint(1, 61, (3, 10))
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    mask[1, :3] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generated(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tokens, greedily, and the logits of each step."""
    result = model.generate(
        **batch,
        max_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return result.sequences, torch.stack(result.logits, 1)


@each_model
def test_same_logits_and_text(name):
    model = make(name)
    batch = padded_batch()
    ids = torch.randint(1, 61, (2, 20))
    with torch.no_grad():
        expected = model(ids).logits
        sequences, logits = generated(copy.deepcopy(model), batch)
        report = attnops.hf.patch(model)
        actual = model(ids).logits
        torch.testing.assert_close(actual, expected, **HF_LOGITS)
        assert not torch.equal(actual, expected) or "gptj" in name  # it is another encoding
        new_sequences, new_logits = generated(copy.deepcopy(model), batch)
        assert torch.equal(new_sequences, sequences)
        torch.testing.assert_close(new_logits, logits, **HF_LOGITS)
        assert len(report.changes) == (2 if name == "gptj" else 1)
        assert attnops.hf.patch(model) == report  # again: nothing more
        assert attnops.hf.unpatch(model) == report
        assert not attnops.hf.unpatch(model).changes
        if "dynamic" not in name:  # whose own frequencies remember the longest sequence
            assert torch.equal(model(ids).logits, expected)


@each_model
def test_positions_matter(name):
    """A test of equality means something only if the encoding does."""
    model = make(name)
    attnops.hf.patch(model)
    ids = torch.randint(1, 61, (1, 12))
    with torch.no_grad():
        far = torch.arange(12)[None] * 3
        near, moved = model(ids).logits, model(ids, position_ids=far).logits
    difference = (near - moved).abs().max()
    assert difference > 100 * HF_LOGITS["atol"]


@pytest.mark.parametrize("name", ["llama3", "phi", "gpt_neox", "gptj"])
def test_gradients(name):
    model = make(name)
    ids = torch.randint(1, 61, (2, 9))
    model(ids, labels=ids).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    attnops.hf.patch(model)
    model(ids, labels=ids).loss.backward()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, **HF_LOGITS)


def test_gradient_checkpointing():
    model = make("llama")
    ids = torch.randint(1, 61, (2, 9))
    attnops.hf.patch(model)
    model(ids, labels=ids).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.train()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, **HF_LOGITS)


def test_state_dict_and_copies():
    model = make("llama")
    keys = list(model.state_dict())
    attnops.hf.patch(model)
    assert list(model.state_dict()) == keys
    ids = torch.randint(1, 61, (1, 9))
    with torch.no_grad():
        expected = model(ids).logits
        twin = copy.deepcopy(model)
        attnops.hf.unpatch(model)
        assert torch.equal(twin(ids).logits, expected)
        assert len(attnops.hf.unpatch(twin).changes) == 1
        assert torch.equal(twin(ids).logits, model(ids).logits)


def test_another_model_of_the_same_class_is_left_alone():
    model, other = make("llama"), make("llama")
    ids = torch.randint(1, 61, (1, 9))
    with torch.no_grad():
        expected = other(ids).logits
        attnops.hf.patch(model)
        model(ids)
        assert torch.equal(other(ids).logits, expected)


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_compile(name):
    model = make(name)
    ids = torch.randint(1, 61, (2, 9))
    attnops.hf.patch(model)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, **HF_LOGITS)


def test_frequencies_of_a_converted_model():
    """model.bfloat16() rounds inv_freq; the patched model has the exact ones."""
    model = make("llama").bfloat16()
    own = model.model.rotary_emb.inv_freq
    assert own.dtype == torch.bfloat16
    attnops.hf.patch(model)
    theta = model.model.rotary_emb.attnops_rope.theta
    assert theta.dtype == torch.float32
    torch.testing.assert_close(theta, make("llama").model.rotary_emb.inv_freq)
    model.half()
    assert torch.equal(model.model.rotary_emb.attnops_rope.theta, theta)
    with torch.no_grad():
        assert model(torch.randint(1, 61, (2, 400))).logits.isfinite().all()


def test_report():
    report = attnops.hf.patch(make("llama3"))
    lines = str(report).splitlines()
    assert lines[0] == "LlamaForCausalLM: 1 module with attnops' rope"
    assert lines[1].split() == [
        *("model.rotary_emb", "(LlamaRotaryEmbedding):", "8", "pairs,", "halves,"),
        *("base", "10000,", "scaling", "llama3"),
    ]
    gptj = attnops.hf.patch(make("gptj"))
    assert [c.name for c in gptj.changes] == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert "neighbours" in gptj.changes[0].what


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"attnops\.hf\.patch: Linear has none of the rotary"):
        attnops.hf.patch(nn.Linear(2, 2))
    gpt2 = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=61)
    with pytest.raises(ValueError, match=r"attnops\.hf\.patch: GPT2LMHeadModel has none"):
        attnops.hf.patch(transformers.GPT2LMHeadModel(gpt2))
    with pytest.raises(ValueError, match=r"attnops\.hf\.patch: model must be"):
        attnops.hf.patch("llama")
    model = make("llama")
    model.model.rotary_emb.inv_freq.mul_(2)
    with pytest.raises(ValueError, match=r"inv_freq of model\.rotary_emb is not what"):
        attnops.hf.patch(model)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"attnops\.hf needs the package transformers"):
        attnops.hf.patch(nn.Linear(2, 2))
