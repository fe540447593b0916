"""One learner: a model in training and its optimiser. Takes a batch, gives a report; knows nothing of Dask.

Schedule and random numbers are functions of the step's number, so that the state to save is the adapter, the
optimiser's moments and the policy version.
"""

from __future__ import annotations

import io
import math
import time
from pathlib import Path

import torch

from tasks.adapter import adapter_files, load_adapter
from tasks.algorithms import TrainedTokens, make_algorithm
from tasks.batch import check_sample, trained_spans
from tasks.checkpoints import load_checkpoint, save_checkpoint
from tasks.collate import collate
from tasks.errors import LearnerError
from tasks.learner_checks import check_learner
from tasks.learner_contracts import LearnerBatch, LearnerSpec, TrainReport
from tasks.policy_model import PolicyModel
from tasks.prefixes import micro_batches, rows_of
from tasks.randomness import derive_seed
from tasks.schedule import learning_rate
from tasks.train_metrics import MeasuredTokens, batch_metrics, finite, token_metrics

OPTIMISER_NAME = "optimiser.pt"


class Learner:
    """The policy in training, at `policy_version`: 0 is the base model, each step that changes weights adds 1.

    Raises:
        ConfigError: see `check_learner`.
        LearnerError: the model's architecture is not one that can be trained here.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        check_learner(spec)
        self.spec = spec
        self.policy_version = 0
        self._algorithm = make_algorithm(spec.algorithm, spec.sampling.max_tokens, spec.algorithm_args)
        self._policy = PolicyModel(spec)
        self._optimiser = torch.optim.AdamW(
            self._policy.parameters, lr=spec.learning_rate, betas=spec.betas, weight_decay=spec.weight_decay
        )
        self._skipped_in_a_row = 0

    def step(self, batch: LearnerBatch) -> TrainReport:
        """One step of the optimiser on the whole batch; a new version of the policy, saved as a checkpoint.

        A batch that teaches nothing, or whose loss or gradient is not finite, changes nothing and is reported as
        skipped.

        Raises:
            LearnerError: a sequence is not whole; or as many steps in a row as `max_skipped` were not finite.
        """
        began = time.perf_counter()
        for sample in batch.samples:
            check_sample(sample)
        self._optimiser.zero_grad()
        with torch.random.fork_rng([self._policy.device] if self._policy.device.type == "cuda" else []):
            torch.manual_seed(derive_seed(self.spec.seed, "learner", batch.number))
            loss, pieces = self._accumulate(batch)
        limit = math.inf if self.spec.max_grad_norm is None else self.spec.max_grad_norm
        grad_norm = torch.nn.utils.clip_grad_norm_(self._policy.parameters, limit).item()
        rate = learning_rate(self.spec, batch.number)
        reason = self._why_not(loss, grad_norm)
        adapter = self._advance(rate, batch.number) if not reason else None
        seconds = time.perf_counter() - began
        metrics = {"loss": loss, "grad_norm": grad_norm, "learning_rate": rate}
        return TrainReport(
            number=batch.number,
            policy_version=self.policy_version,
            metrics=finite(metrics | token_metrics(pieces) | batch_metrics(batch, seconds)),
            skipped=bool(reason),
            reason=reason,
            adapter=adapter,
            seconds=seconds,
        )

    def restore(self, version: int) -> None:
        """Go on from the checkpoint of a version, as if what came after it had not been.

        Raises:
            LearnerError: there is no such checkpoint, it is damaged, or it is of another base model, LoRA shape or
                algorithm.
        """
        files = load_checkpoint(Path(self.spec.checkpoint_dir), version, self._identity())
        moments = torch.load(io.BytesIO(files[OPTIMISER_NAME]), map_location="cpu", weights_only=True)
        load_adapter(self._policy.adapted, files)
        # Moments alone: what is configured, such as weight decay, is as it is configured now.
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.policy_version = version
        self._skipped_in_a_row = 0

    def _accumulate(self, batch: LearnerBatch) -> tuple[float, list[MeasuredTokens]]:
        """The loss of the batch, and its gradient in the parameters, micro-batch by micro-batch."""
        trained = [sample for sample in batch.samples if any(trained_spans(sample))]
        lengths = [len(span.logprobs) for sample in trained for span in trained_spans(sample)]
        loss = 0.0
        pieces = []
        rows = rows_of(trained, share=self._policy.shares_prefixes)
        for some in micro_batches(rows, self.spec.micro_batch_tokens):
            micro = collate(some, batch.policy_version, self._policy.device)
            logprobs_N, entropy_N = self._policy.token_logprobs(micro)
            tokens = TrainedTokens(
                logprobs_N, micro.recorded_N, micro.advantages_N, entropy_N, len(lengths), sum(lengths)
            )
            share = self._algorithm.loss(tokens)
            torch.autograd.backward(share)
            loss += share.item()
            measured = (logprobs_N.detach(), micro.recorded_N, entropy_N, micro.lags_N)
            pieces.append(MeasuredTokens(*(tensor.cpu() for tensor in measured)))
        return loss, pieces

    def _why_not(self, loss: float, grad_norm: float) -> str:
        """Why the optimiser must not step; empty where it may."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._skipped_in_a_row = 0
            # Without a gradient momentum and weight decay would still move the weights.
            return "" if grad_norm else "nothing to learn: no token has a gradient (every advantage is 0, or no tokens)"
        self._skipped_in_a_row += 1
        found = f"the loss is {loss} and the norm of its gradient {grad_norm}"
        if self._skipped_in_a_row >= self.spec.max_skipped:
            raise LearnerError(
                f"{found}, not finite for the {self._skipped_in_a_row}. step in a row; expected finite numbers. Look "
                "at the metrics of the steps before: rewards or advantages that are not numbers, ratio_max far above "
                f"1, a grad_norm that grew. Lower learner.learning_rate (now {self.spec.learning_rate:g}) or go back "
                "to an earlier checkpoint"
            )
        return f"{found}: not finite, {self._skipped_in_a_row} in a row"

    def _advance(self, rate: float, number: int) -> dict[str, bytes]:
        """Step the optimiser, save the new version, and return its adapter."""
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self.policy_version += 1
        adapter = adapter_files(self._policy.adapted)
        moments = io.BytesIO()
        torch.save(self._optimiser.state_dict()["state"], moments)
        save_checkpoint(
            Path(self.spec.checkpoint_dir),
            self.policy_version,
            adapter | {OPTIMISER_NAME: moments.getvalue()},
            self._identity() | {"number": number},
            self.spec.keep_checkpoints,
        )
        return adapter

    def _identity(self) -> dict[str, object]:
        """What a checkpoint must have been made with to go on from it."""
        spec = self.spec
        return {
            "model_name": spec.model_name,
            "lora_rank": spec.lora_rank,
            "lora_alpha": spec.lora_alpha,
            "target_modules": sorted(spec.target_modules),
            "algorithm": spec.algorithm,
        }
