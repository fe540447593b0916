"""Scripted players read moves from observations; engine agents ask for what their spec says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import textarena

from tasks.agents import EngineAgent, ScriptedAgent, make_agent, readable_moves, scripted_players
from tasks.contracts import (
    AdapterRef,
    AgentSpec,
    Completion,
    EngineReply,
    GameSpec,
    Mode,
    ModelKind,
    ModelRef,
    Role,
    SamplingSpec,
)
from tasks.errors import ConfigError

BASE = ModelRef("policy@0", ModelKind.ENGINE, 0)


def scripted(name: str, player_id: int = 0) -> AgentSpec:
    return AgentSpec(player_id, Role.OPPONENT, ModelRef(f"scripted:{name}", ModelKind.SCRIPTED))


def game_spec(*agents: AgentSpec, seed: int = 1, group_index: int = 0) -> GameSpec:
    return GameSpec("run", "game", Mode.TRAIN, "KuhnPoker-v0-train", 2, seed, agents, group_index=group_index)


@dataclass
class FakeEngine:
    """Notes what it is asked and answers with the given texts in turn, `n` at a time."""

    texts: list[str]
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def generate(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingSpec,
        *,
        n: int,
        seed: int,
        adapter: AdapterRef | None,
    ) -> EngineReply:
        self.asked.append({"messages": messages, "sampling": sampling, "n": n, "seed": seed, "adapter": adapter})
        texts, self.texts = self.texts[:n], self.texts[n:]
        return EngineReply((1, 2, 3), tuple(Completion(text, (4,), (-0.1,), "stop") for text in texts))


class TestReadableMoves:
    """Where a scripted player finds its moves."""

    @pytest.mark.parametrize(
        ("observation", "moves"),
        [
            ("[bet] wins.\n\nYour available actions are: '[check]', '[bet]'", ["[check]", "[bet]"]),
            ("Board [x]\n\nAvailable Moves: '[0]', '[1]', '[8]'", ["[0]", "[1]", "[8]"]),
            ("Valid moves: [Up], [Down]. Tiles combine.\n[2][4]", ["[Up]", "[Down]"]),
            ("Valid moves: '[0, 1]', '[1, 0]'\nScores - Black: 2", ["[0, 1]", "[1, 0]"]),
            ("Your options: [draw], [take]", ["[draw]", "[take]"]),
            # A history lists the moves of every turn; the last list is this turn's.
            ("Available actions: '[check]'\n[Player 1] [bet]\nAvailable actions: '[fold]'", ["[fold]"]),
        ],
    )
    def test_announced_moves(self, observation: str, moves: list[str]) -> None:
        assert readable_moves(observation) == moves

    @pytest.mark.parametrize(
        ("observation", "moves"),
        [
            ("[GAME] Submit [heads] or [tails].\n[Player 0] [heads]", ["[heads]", "[tails]"]),
            ("Available Moves: up, down. Use [w] or [s].\nGo [w].", ["[w]", "[s]"]),
            ("Say something.", ["[0]"]),
            ("", ["[0]"]),
        ],
    )
    def test_otherwise_whatever_is_in_brackets_but_not_who_speaks(self, observation: str, moves: list[str]) -> None:
        assert readable_moves(observation) == moves

    @pytest.mark.parametrize("env_id", ["KuhnPoker-v0", "KuhnPoker-v0-train", "TicTacToe-v0", "TicTacToe-v0-train"])
    def test_textarenas_own_wording_is_understood_all_game_long(self, env_id: str) -> None:
        env = textarena.make(env_id)
        env.reset(num_players=2, seed=4)
        done = False
        while not done:
            _, observation = env.get_observation()
            done, _ = env.step(readable_moves(observation)[-1])
        _, game_info = env.close()
        assert not any(info["invalid_move"] for info in game_info.values())


class TestScripted:
    """Players without a model."""

    OBSERVATION = "Available Moves: '[0]', '[1]', '[2]', '[3]'"

    def moves(self, spec: GameSpec, player_id: int = 0, turns: int = 20) -> list[str]:
        agent = make_agent(spec, spec.agents[player_id], engine=None)
        return [asyncio.run(agent.act(self.OBSERVATION, turn)).action for turn in range(turns)]

    def test_first_takes_the_first(self) -> None:
        assert self.moves(game_spec(scripted("first"))) == ["[0]"] * 20

    def test_random_takes_any_and_the_same_for_the_same_spec(self) -> None:
        moves = self.moves(game_spec(scripted("random")))
        assert moves == self.moves(game_spec(scripted("random")))
        assert set(moves) == {"[0]", "[1]", "[2]", "[3]"}

    def test_seed_group_index_and_player_each_change_what_is_drawn(self) -> None:
        both = (scripted("random"), scripted("random", 1))
        drawn = [
            self.moves(game_spec(*both)),
            self.moves(game_spec(*both), player_id=1),
            self.moves(game_spec(*both, seed=2)),
            self.moves(game_spec(*both, group_index=1)),
        ]
        assert len({tuple(moves) for moves in drawn}) == 4

    def test_the_choice_has_no_tokens(self) -> None:
        spec = game_spec(scripted("first"))
        choice = asyncio.run(ScriptedAgent(spec, spec.agents[0]).act(self.OBSERVATION, 0))
        assert (choice.completion, choice.format_ok, choice.completion_ids, choice.finish_reason) == (
            "[0]",
            True,
            (),
            None,
        )

    def test_an_unknown_one_is_refused_with_the_nearest(self) -> None:
        spec = game_spec(scripted("rndom"))
        with pytest.raises(
            ConfigError, match=r"unknown scripted player 'rndom'; valid are first, random.*mean 'random'\?"
        ):
            make_agent(spec, spec.agents[0], engine=None)
        assert scripted_players() == ("scripted:random", "scripted:first")


class TestEngineAgent:
    """Players behind an engine."""

    ADAPTED = ModelRef("policy@3", ModelKind.ENGINE, 3, AdapterRef("policy@3", "/adapters/3"))

    def test_it_asks_with_its_prompt_its_sampling_and_its_adapter(self) -> None:
        sampling = SamplingSpec(temperature=0.7, max_tokens=16)
        agent = AgentSpec(0, Role.ACTOR, self.ADAPTED, "raw", "boxed", "default", sampling)
        engine = FakeEngine(["<think>?</think>\\boxed{bet}"])
        choice = asyncio.run(make_agent(game_spec(agent), agent, engine).act("You hold a K.", 0))  # type: ignore[arg-type]
        (request,) = engine.asked
        assert request["messages"] == [{"role": "user", "content": "You hold a K."}]
        assert (request["sampling"], request["n"], request["adapter"]) == (sampling, 1, self.ADAPTED.adapter)
        assert (choice.action, choice.completion) == ("[bet]", "<think>?</think>\\boxed{bet}")

    def test_a_vote_is_one_request(self) -> None:
        agent = AgentSpec(0, Role.ACTOR, BASE, "raw", "bracket", "majority:3", SamplingSpec())
        engine = FakeEngine(["[a]", "[b]", "[b]"])
        choice = asyncio.run(make_agent(game_spec(agent), agent, engine).act("", 0))  # type: ignore[arg-type]
        assert [request["n"] for request in engine.asked] == [3]
        assert (choice.action, choice.votes) == ("[b]", {"[a]": 1, "[b]": 2})

    def test_request_seeds_differ_by_game_group_index_player_and_step_only(self) -> None:
        def seed(game_seed: int, group_index: int, player_id: int, step: int) -> int:
            agent = AgentSpec(player_id, Role.ACTOR, BASE, "raw", "raw", "default", SamplingSpec())
            engine = FakeEngine(["x"])
            spec = game_spec(agent, seed=game_seed, group_index=group_index)
            asyncio.run(EngineAgent(spec, agent, engine, SamplingSpec()).act("", step))  # type: ignore[arg-type]
            drawn = engine.asked[0]["seed"]
            assert isinstance(drawn, int)
            return drawn

        cases = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)]
        assert len({seed(*case) for case in cases}) == len(cases)
        assert seed(1, 0, 0, 0) == seed(1, 0, 0, 0)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"prompt_template": "boxed"}, "unknown prompt_template 'boxed'"),
            ({"action_extraction": "box"}, "unknown action_extraction 'box'"),
            ({"action_sampler": "vote"}, "unknown action_sampler 'vote'"),
            ({"sampling": None}, "player 0 is model 'policy@0' without sampling parameters"),
        ],
    )
    def test_wrong_settings_are_refused(self, changes: dict[str, Any], message: str) -> None:
        agent = AgentSpec(0, Role.ACTOR, BASE, **{"sampling": SamplingSpec(), **changes})
        with pytest.raises(ConfigError, match=message):
            make_agent(game_spec(agent), agent, FakeEngine([]))  # type: ignore[arg-type]

    def test_a_worker_without_an_engine_is_told_so(self) -> None:
        agent = AgentSpec(0, Role.ACTOR, BASE, sampling=SamplingSpec())
        with pytest.raises(ConfigError, match="player 0 is model 'policy@0', but this worker has no engine"):
            make_agent(game_spec(agent), agent, engine=None)
