"""Converts a GGUF file of a Llama model to the format of transformers: `python -m tasks.model_build GGUF FOLDER`.

Run in a process of its own by tasks/models.py; prints one line for each stage.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(source: Path, folder: Path) -> None:
    """Write config, float32 weights, tokenizer and chat template of the model in `source` to `folder`."""
    print("loading transformers")
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    print(f"reading {source.name} and expanding its 4-bit weights to float32")
    gguf = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(source.parent, **gguf, quantization_config=GgufConfig(dequantize=True))
    if hasattr(model.config, "quantization_config"):  # the saved weights are plain float32
        del model.config.quantization_config
    print("reading its tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **gguf)
    # GGUF names the pre-tokenizer (`smollm`: digits apart, then bytes) and transformers reads only the second half.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    print(f"saving to {folder}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
