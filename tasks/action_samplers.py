"""From an engine's completions to one choice: `default` takes the one, `majority` lets several vote.

Imports nothing heavy, so that a configuration can be checked with it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

from tasks.contracts import Choice, EngineReply, SamplingSpec
from tasks.errors import ConfigError
from tasks.names import nearest
from tasks.prompts import Extraction, Parsed
from tasks.token_ids import TokenIds

DEFAULT_VOTERS = 3
_NAMES = ("default", "majority")


@dataclass(frozen=True)
class ActionSampler:
    """How many completions one decision samples, in one request, and which of them is played."""

    name: str
    completions: int

    def choose(self, reply: EngineReply, extract: Extraction, rng: random.Random) -> Choice:
        """The completion that is played, with the votes that chose it.

        With several completions each votes for its action; those without the asked form vote only when none has it.
        Ties are broken by `rng`. The choice records the first completion that voted for the winner.

        Args:
            reply: the engine's answer, at least one completion.
            extract: from a completion's text to its action.
            rng: the agent's own generator.
        """
        parsed = [extract(completion.text) for completion in reply.completions]
        if self.completions == 1:
            return _choice(reply, parsed, 0)
        well_formed = [one for one in parsed if one.format_ok]
        votes = Counter(one.action for one in well_formed or parsed)
        most = max(votes.values())
        leaders = [action for action, count in votes.items() if count == most]
        winner = leaders[0] if len(leaders) == 1 else rng.choice(leaders)
        played = next(
            index for index, one in enumerate(parsed) if one.action == winner and (one.format_ok or not well_formed)
        )
        return _choice(reply, parsed, played, votes)


def action_sampler(name: str, sampling: SamplingSpec | None = None) -> ActionSampler:
    """The sampler named `default`, `majority` (3 completions) or `majority:K` (K of at least 2).

    Args:
        name: the setting.
        sampling: where given, checked for whether completions can differ at all.

    Raises:
        ConfigError: no such sampler, K out of range, or a vote at temperature 0.
    """
    kind, colon, count = name.partition(":")
    if kind not in _NAMES or (kind == "default" and colon):
        raise ConfigError(
            f"unknown action_sampler {name!r}; valid are default, majority and majority:K.{nearest(kind, _NAMES)}"
        )
    if kind == "default":
        return ActionSampler(name, 1)
    if colon and not (count.isascii() and count.isdigit() and int(count) >= 2):
        raise ConfigError(f"action_sampler {name!r} asks for {count!r} completions; expected a whole number from 2 up.")
    if sampling is not None and sampling.temperature == 0:
        raise ConfigError(
            f"action_sampler {name!r} at temperature 0 would count one completion several times; expected a "
            "temperature above 0, or action_sampler 'default'."
        )
    return ActionSampler(name, int(count) if colon else DEFAULT_VOTERS)


def _choice(reply: EngineReply, parsed: list[Parsed], played: int, votes: Counter[str] | None = None) -> Choice:
    """The choice that plays `reply.completions[played]`; confidence and entropy (nats) are those of `votes`."""
    action, completion = parsed[played], reply.completions[played]
    shares = None if votes is None else {text: count / votes.total() for text, count in votes.items()}
    return Choice(
        action=action.action,
        completion=completion.text,
        format_ok=action.format_ok,
        feedback=action.feedback,
        prompt_ids=TokenIds(reply.prompt_ids),
        completion_ids=TokenIds(completion.token_ids),
        logprobs=tuple(math.nan if value is None else float(value) for value in completion.logprobs),
        finish_reason=completion.finish_reason,
        token_limit=reply.token_limit,
        generated_tokens=sum(len(one.token_ids) for one in reply.completions),
        cached_tokens=reply.cached_tokens,
        votes=None if votes is None else dict(votes),
        confidence=None if shares is None else shares[action.action],
        entropy=None if shares is None else sum(share * math.log(1 / share) for share in shares.values()),
    )
