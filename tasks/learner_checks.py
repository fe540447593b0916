"""What a learner's settings are refused or warned about before anything is loaded. Light: the driver asks, too."""

from __future__ import annotations

from tasks.algorithms import make_algorithm
from tasks.contracts import SamplingSpec
from tasks.errors import ConfigError
from tasks.learner_contracts import LearnerSpec
from tasks.schedule import check_schedule

DTYPES = ("auto", "float32", "bfloat16")


def check_learner(spec: LearnerSpec) -> None:
    """Refuse settings that no learning step could use.

    Raises:
        ConfigError: no such algorithm, schedule or dtype; an algorithm that does not take its arguments; or greedy
            sampling.
    """
    if spec.dtype not in DTYPES:
        raise ConfigError(f"learner.dtype is {spec.dtype!r}; expected one of {', '.join(DTYPES)}")
    check_schedule(spec)
    make_algorithm(spec.algorithm, spec.sampling.max_tokens, spec.algorithm_args)
    if not spec.sampling.temperature > 0:
        raise ConfigError(
            f"learning needs sampled completions, but temperature is {spec.sampling.temperature}: a greedy token has "
            "log-probability 0, and there is nothing to compare it with. Set vllm.temperature above 0, such as 1.0"
        )


def sampling_caveat(sampling: SamplingSpec) -> str | None:
    """Why recorded and learned log-probabilities cannot agree under this sampling; None where they can.

    What the engine records is of the distribution it samples from. Cut to `top_p` or `top_k`, it gives the tokens that
    are left a larger probability than the model does.
    """
    cut = [
        text
        for text, is_cut in (
            (f"top_p {sampling.top_p:g}", sampling.top_p < 1),
            (f"top_k {sampling.top_k}", sampling.top_k > 0),
        )
        if is_cut
    ]
    if not cut:
        return None
    return (
        f"{' and '.join(cut)} cut the distribution that is sampled from, so that importance ratios are off even "
        "without lag: expected top_p 1 and top_k 0 for learning. Shape exploration with the temperature instead"
    )
