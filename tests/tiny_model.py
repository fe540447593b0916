"""Makes models small enough for tests: a random two-layer Llama with a byte tokenizer, and LoRA adapters for it."""

from __future__ import annotations

from pathlib import Path

TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

HEAD_SIZE = 32  # the smallest that vLLM's attention on the CPU has a kernel for

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(folder: Path, *, seed: int = 0, hidden_size: int = 64, chat_template: bool = True) -> Path:
    """Save a random Llama in float32 (2 layers, one token per byte) with its tokenizer to `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer()
    if chat_template:
        tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=hidden_size // HEAD_SIZE,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        initializer_range=0.2,  # wide enough for logits that tell tokens apart
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_adapter(folder: Path, base: Path, *, seed: int = 0, rank: int = 4, init: bool | str = False) -> Path:
    """Save a LoRA adapter for `base` with random weights in both halves to `folder`, as PEFT does."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(TARGET_MODULES),
        init_lora_weights=init,
        task_type="CAUSAL_LM",
    )
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


def _byte_tokenizer():  # type: ignore[no-untyped-def]  # transformers is untyped here
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
    )
