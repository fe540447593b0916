"""The model in training: base model and adapter, and the log-probabilities it gives to the tokens of a micro-batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from tasks.adapter import add_adapter
from tasks.collate import MicroBatch, collate
from tasks.errors import LearnerError
from tasks.learner_contracts import LearnerSample, LearnerSpec
from tasks.losses import token_logprobs
from tasks.models import resolve_model
from tasks.prefixes import rows_of

_FULL = "full_attention"
# Two sequences with a common beginning, in the order that `rows_of` keeps.
_PROBES = tuple(
    LearnerSample(ids, ((1, 8),), (0.0,) * 7, (0.0,), "", "", player_id=0, game_id="", policy_version=0)
    for ids in ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 4, 9, 10, 11))
)
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # both ways add up in another order


class PolicyModel:
    """A causal language model with one LoRA adapter, on the GPU if there is one.

    `adapted` is PEFT's model; `parameters` are the adapter's, all else is frozen. `shares_prefixes` says whether rows
    of several sequences (`tasks.prefixes`) give what the sequences give alone.

    Raises:
        LearnerError: the model computes its logits in a way that this class does not know.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._temperature = spec.sampling.temperature
        logging.disable_progress_bar()
        dtype = learner_dtype(spec.dtype, self.device)
        base = AutoModelForCausalLM.from_pretrained(resolve_model(spec.model_name), dtype=dtype)
        self.adapted = add_adapter(base.to(self.device), spec)
        self.parameters = [parameter for parameter in self.adapted.parameters() if parameter.requires_grad]
        causal = self.adapted.get_base_model()
        self._decoder: Any = causal.base_model
        self._head: Any = causal.get_output_embeddings()
        self._check_logits(causal, spec.model_name)
        # What has windows or carries a state from token to token (the probe shows it) needs each sequence on its own.
        self.shares_prefixes = (
            _attends_to_all(causal.config) and self._probe(causal, share=True) <= _TOLERANCE[causal.dtype]
        )
        if spec.gradient_checkpointing:
            causal.gradient_checkpointing_enable({"use_reentrant": False})
        self.adapted.train()

    def token_logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """logprobs_N and entropy_N of the trained tokens; only their positions ever meet the vocabulary."""
        hidden_BTH = self._decoder(
            input_ids=batch.ids_BT, position_ids=batch.positions_BT, attention_mask=batch.mask_B1TT, use_cache=False
        ).last_hidden_state
        return token_logprobs(hidden_BTH[batch.rows_N, batch.places_N], batch.targets_N, self._head, self._temperature)

    @torch.no_grad()
    def _probe(self, causal: Any, *, share: bool) -> float:
        """The largest difference between these log-probabilities and those that the model's own logits give."""
        causal.eval()
        got_N, _ = self.token_logprobs(collate(rows_of(_PROBES, share=share), 0, self.device))
        ids_BT = torch.tensor([sample.token_ids for sample in _PROBES], device=self.device)
        logits_BTV = causal(input_ids=ids_BT, use_cache=False).logits.float() / self._temperature
        expected_BT = logits_BTV[:, :-1].log_softmax(-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
        return float((got_N - expected_BT.flatten()).abs().max())

    def _check_logits(self, causal: Any, name: str) -> None:
        difference, allowed = self._probe(causal, share=False), _TOLERANCE[causal.dtype]
        if not difference <= allowed:
            raise LearnerError(
                f"the logits of {name} are not those of its output layer: log-probabilities differ by "
                f"{difference:.3g}, expected at most {allowed:g}. Its architecture changes them afterwards (a scale or "
                "a cap), which the learner does not do: choose another model"
            )


def _attends_to_all(config: Any) -> bool:
    """Whether a model says that each token attends to all tokens before it, in every layer, however far away."""
    kinds = set(getattr(config, "layer_types", None) or [_FULL])
    return kinds == {_FULL} and not getattr(config, "sliding_window", None)


def learner_dtype(name: str, device: torch.device) -> torch.dtype:
    """The base model's dtype; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, name)
    return dtype
