"""The model in training: base model and adapter, and the log-probabilities it gives to the tokens of a micro-batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from tasks.adapter import add_adapter
from tasks.collate import MicroBatch
from tasks.errors import LearnerError
from tasks.learner_contracts import LearnerSpec
from tasks.losses import token_logprobs
from tasks.models import resolve_model

_PROBE_LENGTH = 8
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # both ways add up in another order


class PolicyModel:
    """A causal language model with one LoRA adapter, on the GPU if there is one.

    `adapted` is PEFT's model; `parameters` are the adapter's, all else is frozen.

    Raises:
        LearnerError: the model computes its logits in a way that this class does not know.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._temperature = spec.sampling.temperature
        logging.disable_progress_bar()
        base = AutoModelForCausalLM.from_pretrained(resolve_model(spec.model_name), dtype=_dtype(spec, self.device))
        self.adapted = add_adapter(base.to(self.device), spec)
        self.parameters = [parameter for parameter in self.adapted.parameters() if parameter.requires_grad]
        causal = self.adapted.get_base_model()
        self._decoder: Any = causal.base_model
        self._head: Any = causal.get_output_embeddings()
        self._check_head(causal, spec.model_name)
        if spec.gradient_checkpointing:
            causal.gradient_checkpointing_enable({"use_reentrant": False})
        self.adapted.train()

    def token_logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """logprobs_N and entropy_N of the trained tokens; only their positions ever meet the vocabulary."""
        hidden_BTH = self._decoder(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
        return token_logprobs(
            hidden_BTH[batch.rows_N, batch.positions_N], batch.targets_N, self._head, self._temperature
        )

    @torch.no_grad()
    def _check_head(self, causal: Any, name: str) -> None:
        """Compare with the model's own logits: some architectures scale or cap them after the output layer."""
        causal.eval()
        ids_BT = torch.arange(_PROBE_LENGTH, device=self.device)[None]
        expected = causal(input_ids=ids_BT, use_cache=False).logits.float()
        got = self._head(self._decoder(input_ids=ids_BT, use_cache=False).last_hidden_state).float()
        difference = (got.log_softmax(-1) - expected.log_softmax(-1)).abs().max().item()
        allowed = _TOLERANCE[causal.dtype]
        if not difference <= allowed:
            raise LearnerError(
                f"the logits of {name} are not those of its output layer: log-probabilities differ by "
                f"{difference:.3g}, expected at most {allowed:g}. Its architecture changes them afterwards (a scale or "
                "a cap), which the learner does not do: choose another model"
            )


def _dtype(spec: LearnerSpec, device: torch.device) -> torch.dtype:
    if spec.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype
