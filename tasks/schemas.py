"""The columns of the dataset: two Arrow schemas, written out, each column with its unit and its meaning.

`docs/dataset.md` shows the same columns to readers; a test holds the two together. Raise `SCHEMA_VERSION` when a column
is removed or renamed, or changes type, unit or meaning. A new column may be null, which is how older shards are read,
and leaves the version as it is.

`int32` is what the pipeline counts, `int64` what a user sets.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1
VERSION_KEY = b"selfplay.schema_version"
TOKEN_IDS = pa.list_(pa.int32())

_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_COUNT, _SETTING, _REAL = pa.int32(), pa.int64(), pa.float64()
_TIME = pa.timestamp("us", tz="UTC")


def _always(name: str, kind: pa.DataType, meaning: str, unit: str = "") -> pa.Field[Any]:
    """A column that has a value in every row."""
    return pa.field(name, kind, nullable=False, metadata={"meaning": meaning, "unit": unit})


def _maybe(name: str, kind: pa.DataType, meaning: str, unit: str = "") -> pa.Field[Any]:
    """A column that may be null; its meaning says when."""
    return pa.field(name, kind, nullable=True, metadata={"meaning": meaning, "unit": unit})


EPISODE_SCHEMA = pa.schema(
    [
        _always("run_id", _TEXT, "the run the game belongs to"),
        _always("game_id", _TEXT, "the game; one row each, unique in a run"),
        _always("group_id", _TEXT, "games that share environment and seed; empty for a game without a group"),
        _always("group_index", _COUNT, "the game's place in its group, from 0"),
        _always("attempt", _COUNT, "which attempt this row is of, from 0; only one attempt is stored"),
        _always("mode", _TEXT, "`train` or `eval`"),
        _always("env_id", _TEXT, "the environment's TextArena id"),
        _always("env_kwargs", _TEXT, "further arguments the environment was made with", "JSON object"),
        _maybe("error_allowance", _SETTING, "illegal moves forgiven in a row; null: the environment's own", "moves"),
        _maybe("max_turns", _SETTING, "turn cap; null: none", "turns"),
        _maybe("time_limit_s", _REAL, "wall-clock limit; null: none", "s"),
        _always("num_players", _COUNT, "players in the game", "players"),
        _always("seed", _SETTING, "what the game's random numbers start from"),
        _always("model_uid", _TEXTS, "by player: which weights or script answered"),
        _always("model_kind", _TEXTS, "by player: `engine`, `scripted` or `api`"),
        _always(
            "policy_version", pa.list_(_SETTING), "by player: version of the policy, 0 the base; null: not the policy"
        ),
        _always("adapter_uid", _TEXTS, "by player: the LoRA adapter in use; null: none"),
        _always("adapter_path", _TEXTS, "by player: folder the adapter was loaded from; null: none"),
        _always("role", _TEXTS, "by player: `actor` (learned from) or `opponent`"),
        _always("prompt_template", _TEXTS, "by player: name of the rule from observation to messages"),
        _always("action_extraction", _TEXTS, "by player: name of the rule from completion to action"),
        _always("action_sampler", _TEXTS, "by player: name of the rule that picks among completions"),
        _always("sampling", _TEXTS, "by player: sampling parameters, as in `steps`; null: scripted", "JSON object"),
        _maybe(
            "rewards", pa.list_(_REAL), "by player: the environment's raw reward; null: no end, or none for that player"
        ),
        _maybe(
            "outcome",
            _TEXTS,
            "by player: `win`, `draw` or `loss`; a win with an `offender` is a forfeit; null: undecided",
        ),
        _always("status", _TEXT, "how the game ended: see Statuses"),
        _always("reason", _TEXT, "the environment's word for the end, or the error's type and message; may be empty"),
        _maybe("offender", _COUNT, "the player whose illegal move ended the game; null: nobody's did"),
        _always("turns", _COUNT, "rows of this game in `steps`", "steps"),
        _always("player_info", _TEXTS, "by player: the environment's closing words; empty list: none", "JSON object"),
        _maybe("started_at", _TIME, "when play began; null: it never did", "UTC, µs"),
        _maybe("finished_at", _TIME, "when it ended or was given up; null: not recorded", "UTC, µs"),
        _maybe("duration_s", _REAL, "from start to finish; null: never played", "s"),
        _always("worker", _TEXT, "address of the worker that played it; empty: none did"),
        _maybe("escaped", _TEXTS, "columns of this row whose text is escaped, see Text; null: none"),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), b"selfplay.table": b"episodes"},
)

STEP_SCHEMA = pa.schema(
    [
        _always("run_id", _TEXT, "the run the game belongs to"),
        _always("game_id", _TEXT, "the game; joins with `episodes.game_id`"),
        _always("attempt", _COUNT, "as in `episodes`"),
        _always("env_id", _TEXT, "the environment's TextArena id"),
        _always("mode", _TEXT, "`train` or `eval`"),
        _always("step_index", _COUNT, "the decision's place in the game, from 0, over all players"),
        _always("player_id", _COUNT, "who decided; indexes the lists of `episodes`"),
        _always("role", _TEXT, "`actor` (learned from) or `opponent`"),
        _always("model_uid", _TEXT, "which weights or script answered"),
        _maybe("policy_version", _SETTING, "version of the policy that answered, 0 the base; null: not the policy"),
        _always("observation", _TEXT, "what the environment showed the player"),
        _always("prompt_ids", TOKEN_IDS, "the engine's own prompt tokens; empty: no engine", "token ids"),
        _maybe("completion", _TEXT, "what the player said, whole; null: the endpoint answered without a text"),
        _always("completion_ids", TOKEN_IDS, "the engine's own completion tokens; empty: no engine", "token ids"),
        _always(
            "logprobs",
            pa.list_(pa.float32()),
            "of each completion token, in the distribution sampled from; NaN: not given",
            "nats",
        ),
        _maybe(
            "logprobs_ok",
            pa.bool_(),
            "whether each completion token has a finite one; false is never trained on; null: an older shard",
        ),
        _always("action", _TEXT, "what was parsed from it and given to the environment"),
        _always("format_ok", pa.bool_(), "whether the completion had the form asked for"),
        _maybe("feedback", _TEXT, "what was wrong with its form; null: nothing"),
        _always("illegal", pa.bool_(), "whether the environment refused the action"),
        _maybe("finish_reason", _TEXT, "why the completion ended: `stop`, or `length` when cut off; null: not said"),
        _always("action_sampler", _TEXT, "name of the rule that picked among completions"),
        _maybe("votes", _TEXT, "actions with the completions that gave them; null: one was sampled", "JSON object"),
        _maybe("confidence", _REAL, "the chosen action's share of the votes; null: one was sampled", "0 to 1"),
        _maybe("entropy", _REAL, "of the votes; null: one was sampled", "nats"),
        _always("generated_tokens", _COUNT, "generated for this decision, over all its completions", "tokens"),
        _always("cached_tokens", _COUNT, "of the prompt, found in the engine's prefix cache", "tokens"),
        _always("info", _TEXT, "the environment's step information", "JSON object"),
        _maybe("reward", _REAL, "the environment's raw reward for this step; null: it gave none"),
        _maybe("final_reward", _REAL, "the player's raw reward of the whole game; null: none"),
        _maybe("temperature", _REAL, "sampling temperature, 0 greedy; null: scripted"),
        _maybe("top_p", _REAL, "probability mass sampled from, 1 all; null: scripted"),
        _maybe("top_k", _SETTING, "tokens sampled from, 0 all; null: scripted", "tokens"),
        _maybe("max_tokens", _SETTING, "most tokens of a completion; null: scripted", "tokens"),
        _maybe(
            "token_limit",
            _SETTING,
            "most tokens this one could have: `max_tokens`, or what the context had left if less; null: scripted",
            "tokens",
        ),
        _maybe("stop", _TEXTS, "texts that end a completion; null: scripted"),
        _always("latency_s", _REAL, "from observation to answer", "s"),
        _maybe("escaped", _TEXTS, "columns of this row whose text is escaped, see Text; null: none"),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), b"selfplay.table": b"steps"},
)
