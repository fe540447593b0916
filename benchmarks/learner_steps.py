"""Steps of Kuhn Poker for the benchmark of learning: real games, prompts and tokenizer, canned completions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.replay import TrainingStep
from tasks.contracts import AgentSpec, Choice, GameSpec, Mode, ModelKind, ModelRef, Role, Status, Step, Trajectory
from tasks.play import play_game
from tasks.prompts import prompt_template
from tasks.token_ids import TokenIds

ENV_ID = "KuhnPoker-v0-train"
LOGPROB = -1.5
POLICY = ModelRef("policy@0", ModelKind.ENGINE, 0)
THOUGHTS = (
    "My card is low.",
    "The pot holds two chips, and my opponent has not bet yet.",
    "A king always wins the showdown, so that I want more chips in the pot.",
    "If I fold I lose one chip; if I call I may lose two, but my card wins half of the time.",
)


@dataclass(frozen=True)
class Chat:
    """Turns chat messages into token ids, by the model's own template."""

    tokenizer: Any

    def prompt(self, observation: str) -> tuple[int, ...]:
        """The prompt that an engine would be given."""
        messages = prompt_template("default")(observation)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.ids(text)

    def reply(self, observation: str) -> tuple[int, ...]:
        """What is put between an answer and the next one where a chat goes on."""
        return self.ids(f"\n<|im_start|>user\n{observation}<|im_end|>\n<|im_start|>assistant\n")

    def answer(self, action: str, rng: random.Random) -> tuple[int, ...]:
        """A completion, with its end."""
        thoughts = " ".join(rng.sample(THOUGHTS, rng.randint(1, len(THOUGHTS))))
        return self.ids(f"{thoughts} \\boxed{{{action}}}<|im_end|>")

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text as it stands."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def single_steps(chat: Chat, count: int) -> list[TrainingStep]:
    """The first `count` steps of games, each with its whole history in one message: as the pipeline records them."""
    rng = random.Random(0)
    found: list[TrainingStep] = []
    for trajectory in _trajectories():
        for step in trajectory.steps:
            ids = chat.prompt(step.observation), chat.answer(step.choice.action, rng)
            found.append(_recorded(trajectory, step, *ids, reward=rng.uniform(-1, 1)))
            if len(found) == count:
                return found
    raise AssertionError("games never end")


def chat_steps(chat: Chat, players: int) -> list[TrainingStep]:
    """The steps of so many players, two of each game, held as chats: each prompt goes on after the answer before it."""
    rng = random.Random(0)
    found: list[TrainingStep] = []
    for _, trajectory in zip(range(players), _trajectories(), strict=False):
        ids: tuple[int, ...] = ()
        seen = 0
        for step in trajectory.steps:
            ids += chat.reply(step.observation[seen:]) if ids else chat.prompt(step.observation)
            answer = chat.answer(step.choice.action, rng)
            found.append(_recorded(trajectory, step, ids, answer, reward=rng.uniform(-1, 1)))
            ids += answer
            seen = len(step.observation)
    return found


def _trajectories() -> Iterator[Trajectory]:
    """Both players' sides of one game of random players after another."""
    agents = tuple(AgentSpec(seat, Role.ACTOR, ModelRef("scripted:random", ModelKind.SCRIPTED)) for seat in range(2))
    seed = 0
    while True:
        spec = GameSpec("benchmark", f"game-{seed}", Mode.TRAIN, ENV_ID, 2, seed, agents)
        episode = asyncio.run(play_game(spec, None))
        yield from (episode.trajectory(seat) for seat in range(2))
        seed += 1


def _recorded(
    trajectory: Trajectory, step: Step, prompt: Sequence[int], answer: Sequence[int], *, reward: float
) -> TrainingStep:
    choice = Choice(
        action=step.choice.action,
        completion="",
        format_ok=True,
        prompt_ids=TokenIds(prompt),
        completion_ids=TokenIds(answer),
        logprobs=(LOGPROB,) * len(answer),
    )
    return TrainingStep(
        step=Step(step.index, step.player_id, step.observation, choice, illegal=False),
        reward=reward,
        agent=AgentSpec(step.player_id, Role.ACTOR, POLICY),
        env_id=trajectory.env_id,
        game_id=trajectory.game_id,
        group_id="",
        status=Status.COMPLETED,
    )
