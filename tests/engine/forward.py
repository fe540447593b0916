"""What a model says without an engine: log-probabilities by transformers and PEFT, to compare the engine's with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.contracts import AdapterRef, Completion, EngineReply


def forward_logprobs(model: Any, reply: EngineReply, completion: Completion, temperature: float = 1.0) -> list[float]:
    """The log-probability of each completion token by a forward pass of transformers."""
    import torch

    ids = torch.tensor([reply.prompt_ids + completion.token_ids])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1] / temperature
    chosen = torch.tensor(completion.token_ids)[:, None]
    return torch.log_softmax(logits, dim=-1).gather(1, chosen)[:, 0].tolist()


def load_model(base: Path, adapter: AdapterRef | None = None) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    return model if adapter is None else PeftModel.from_pretrained(model, adapter.path)


def mean_difference(left: list[float], right: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / len(left)
