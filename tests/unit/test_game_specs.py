"""What the next game of each lane is, and that the same seed makes the same games."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.config import ApiOpponent, EvalEnvSpec, LoraConfig, TrainEnvSpec, VLLMConfig
from pipeline.env_samplers import UniformEnvSampler
from pipeline.game_specs import SpecBuilder
from pipeline.model_registry import ModelRegistry
from pipeline.model_samplers import FixedSampler, MirrorSampler
from tasks.contracts import GameSpec, Mode, Role, SamplingSpec
from tasks.errors import AdapterError, ConfigError
from tests.unit.example_adapters import write_adapter

ENGINE = VLLMConfig(model_name="a/model", temperature=0.7, max_tokens=16)
SCRIPTED = VLLMConfig(model_name="scripted:first")
TRAIN = [TrainEnvSpec(env_id="A-v0"), TrainEnvSpec(env_id="B-v0", num_players=3, num_actors=1)]
EVALUATION = [EvalEnvSpec(env_id="X-v0"), EvalEnvSpec(env_id="Y-v0", num_players=3)]


def builder(
    *,
    train: Sequence[TrainEnvSpec] = TRAIN,
    evaluation: Sequence[EvalEnvSpec] = EVALUATION,
    vllm: VLLMConfig = ENGINE,
    opponents: Sequence[str] = ("scripted:random", "scripted:first"),
    action_sampler: str = "majority",
    seed: int = 0,
    group_size: int = 1,
) -> SpecBuilder:
    registry = ModelRegistry(vllm.policy())
    models = FixedSampler(registry, opponents, seed) if opponents else MirrorSampler(registry, seed)
    return SpecBuilder(
        "run", vllm, UniformEnvSampler(train, evaluation, seed), models, action_sampler, seed, group_size
    )


def actor_seats(spec: GameSpec) -> tuple[int, ...]:
    return tuple(agent.player_id for agent in spec.agents if agent.role is Role.ACTOR)


def test_same_seed_same_games_in_both_lanes() -> None:
    one, two = builder(seed=4), builder(seed=4)
    assert [one.train() for _ in range(30)] == [two.train() for _ in range(30)]
    assert [one.evaluation() for _ in range(12)] == [two.evaluation() for _ in range(12)]


def test_each_lane_is_the_same_whatever_the_other_asks_for_in_between() -> None:
    train_first, mixed = builder(), builder()
    train = [train_first.train() for _ in range(30)]
    evaluation = [train_first.evaluation() for _ in range(10)]
    mixed_train, mixed_evaluation = [], []
    for index in range(30):
        mixed_train.append(mixed.train())
        if index % 3 == 0:
            mixed_evaluation.append(mixed.evaluation())
    assert mixed_train == train
    assert mixed_evaluation == evaluation


def test_another_seed_gives_other_games() -> None:
    assert [builder(seed=1).train().seed for _ in range(5)] != [builder(seed=2).train().seed for _ in range(5)]


def test_games_are_numbered_by_lane_and_no_two_share_a_seed() -> None:
    made = builder()
    train = [made.train() for _ in range(200)]
    assert [spec.game_id for spec in train[:2]] == ["train-000000", "train-000001"]
    assert made.evaluation().game_id == "eval-000000"
    assert made.train().game_id == "train-000200"
    assert len({spec.seed for spec in train}) == 200
    assert all(0 <= spec.seed < 2**63 for spec in train)
    assert all(spec.group_id == spec.game_id and spec.group_index == 0 and spec.attempt == 0 for spec in train)


def test_a_group_is_one_game_several_times() -> None:
    made, single = builder(group_size=3), builder()
    for number in range(0, 60, 3):
        group = made.train_group()
        assert [spec.game_id for spec in group] == [f"train-{number + index:06d}" for index in range(3)]
        assert [spec.group_index for spec in group] == [0, 1, 2]
        assert {spec.group_id for spec in group} == {group[0].game_id}
        first = single.train()
        for spec in group:
            assert (spec.seed, spec.env_id, spec.agents) == (first.seed, first.env_id, first.agents)
    assert [spec.game_id for spec in builder().train_group()] == ["train-000000"]


def test_groups_leave_evaluation_as_it_is() -> None:
    made, single = builder(group_size=3), builder()
    made.train_group()
    assert [made.evaluation() for _ in range(10)] == [single.evaluation() for _ in range(10)]


def test_a_spec_says_everything_its_environment_needs() -> None:
    env = TrainEnvSpec(
        env_id="A-v0",
        num_players=2,
        prompt_template="default",
        action_extraction="boxed",
        env_kwargs={"max_rounds": 3},
        error_allowance=2,
        max_turns=20,
        time_limit_s=30.0,
    )
    spec = builder(train=[env], opponents=[]).train()
    assert (spec.run_id, spec.mode, spec.env_id, spec.num_players) == ("run", Mode.TRAIN, "A-v0", 2)
    assert (spec.env_kwargs, spec.error_allowance, spec.max_turns, spec.time_limit_s) == (
        {"max_rounds": 3},
        2,
        20,
        30.0,
    )
    for player_id, agent in enumerate(spec.agents):
        assert (agent.player_id, agent.role, agent.model) == (player_id, Role.ACTOR, ENGINE.policy())
        assert (agent.prompt_template, agent.action_extraction) == ("default", "boxed")
        assert (agent.action_sampler, agent.sampling) == ("default", ENGINE.sampling())


def test_learning_players_sit_anywhere_and_opponents_on_the_rest() -> None:
    made = builder(train=[TrainEnvSpec(env_id="B-v0", num_players=3, num_actors=2)])
    specs = [made.train() for _ in range(600)]
    seats = Counter(actor_seats(spec) for spec in specs)
    assert set(seats) == {(0, 1), (0, 2), (1, 2)}
    assert all(150 < count < 250 for count in seats.values())
    for spec in specs:
        assert all(agent.model.uid == "policy@0" for agent in spec.agents if agent.role is Role.ACTOR)
        assert all(agent.model.uid.startswith("scripted:") for agent in spec.agents if agent.role is Role.OPPONENT)
        assert all(agent.sampling is None for agent in spec.agents if agent.role is Role.OPPONENT)
    assert {agent.model.uid for spec in specs for agent in spec.agents} == {
        "policy@0",
        "scripted:random",
        "scripted:first",
    }


def test_a_mirror_opponent_is_the_policy_but_not_learned_from() -> None:
    spec = builder(train=[TrainEnvSpec(env_id="A-v0", num_actors=1)], opponents=[]).train()
    assert Counter(agent.role for agent in spec.agents) == {Role.ACTOR: 1, Role.OPPONENT: 1}
    assert {agent.model for agent in spec.agents} == {ENGINE.policy()}


def test_evaluation_plays_each_seed_from_each_position_before_the_next_seed() -> None:
    made = builder()
    specs = [made.evaluation() for _ in range(7)]
    assert [spec.env_id for spec in specs] == ["X-v0", "X-v0", "Y-v0", "Y-v0", "Y-v0", "X-v0", "X-v0"]
    assert [actor_seats(spec) for spec in specs] == [(0,), (1,), (0,), (1,), (2,), (0,), (1,)]
    seeds = [spec.seed for spec in specs]
    assert seeds[0] == seeds[1] and seeds[2] == seeds[3] == seeds[4] and seeds[5] == seeds[6]
    assert len(set(seeds)) == 3
    assert len({spec.group_id for spec in specs}) == 7


def test_evaluation_is_the_policy_with_the_given_action_sampler_against_the_fixed_opponent() -> None:
    made = builder(evaluation=[EvalEnvSpec(env_id="X-v0", fixed_opponent="scripted:first")])
    policy, opponent = made.evaluation().agents
    assert (policy.model.uid, policy.action_sampler, policy.sampling) == ("policy@0", "majority", ENGINE.sampling())
    assert (opponent.model.uid, opponent.action_sampler, opponent.sampling) == ("scripted:first", "default", None)
    assert opponent.role is Role.OPPONENT


def test_evaluation_with_several_policy_players_moves_them_round_together() -> None:
    made = builder(evaluation=[EvalEnvSpec(env_id="Y-v0", num_players=3, num_actors=2)])
    assert [actor_seats(made.evaluation()) for _ in range(3)] == [(0, 1), (1, 2), (0, 2)]


@pytest.mark.parametrize("players", [1, 2])
def test_evaluation_of_the_policy_alone_plays_each_seed_once(players: int) -> None:
    made = builder(evaluation=[EvalEnvSpec(env_id="Z-v0", num_players=players, num_actors=players)])
    one, two = made.evaluation(), made.evaluation()
    assert actor_seats(one) == actor_seats(two) == tuple(range(players))
    assert one.seed != two.seed


def test_a_scripted_policy_samples_nothing() -> None:
    made = builder(vllm=SCRIPTED)
    (policy, *_) = made.evaluation().agents
    assert (policy.model, policy.action_sampler, policy.sampling) == (SCRIPTED.policy(), "default", None)
    assert all(agent.sampling is None for agent in made.train().agents)


def test_evaluation_without_environments_is_refused_and_training_goes_on() -> None:
    made = builder(evaluation=[])
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"environments\.eval is empty"):
            made.evaluation()
    assert made.train().game_id == "train-000000"


def test_an_evaluation_opponent_that_is_not_there_is_refused_before_the_first_game() -> None:
    with pytest.raises(ConfigError, match=r"opponent 'adapter:/nowhere': there is no folder /nowhere"):
        builder(evaluation=[EvalEnvSpec(env_id="X-v0", fixed_opponent="adapter:/nowhere")])


def test_an_opponent_behind_an_endpoint_brings_its_own_sampling_and_needs_no_engine() -> None:
    opponent = ApiOpponent(api="tiny", base_url="http://127.0.0.1:8000/v1", temperature=0.5, max_tokens=32)
    made = builder(
        vllm=SCRIPTED,
        train=[TrainEnvSpec(env_id="A-v0", num_actors=1)],
        evaluation=[EvalEnvSpec(env_id="X-v0", fixed_opponent=opponent)],
        opponents=["google/gemini-2.0-flash-lite-001"],
    )
    (trained_on,) = (agent for agent in made.train().agents if agent.role is Role.OPPONENT)
    (fixed,) = (agent for agent in made.evaluation().agents if agent.role is Role.OPPONENT)
    assert trained_on.sampling == SamplingSpec(max_tokens=1024)
    assert (fixed.model.uid, fixed.action_sampler) == ("tiny@127.0.0.1:8000", "default")
    assert fixed.sampling == SamplingSpec(temperature=0.5, max_tokens=32)
    assert {model.uid for model in made.models()} == {
        "scripted:first",
        "google/gemini-2.0-flash-lite-001",
        "tiny@127.0.0.1:8000",
    }


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    return f"adapter:{write_adapter(tmp_path / 'adapter')}"


def test_an_adapter_plays_where_there_is_lora(adapter: str) -> None:
    vllm = VLLMConfig(model_name="a/model", lora_config=LoraConfig())
    made = builder(vllm=vllm, evaluation=[EvalEnvSpec(env_id="X-v0", fixed_opponent=adapter)])
    policy, opponent = made.evaluation().agents
    assert policy.model.adapter is None
    assert opponent.model.adapter is not None
    assert f"adapter:{opponent.model.adapter.path}" == adapter
    assert (opponent.action_sampler, opponent.sampling) == ("default", vllm.sampling())


def test_an_adapter_without_an_engine_is_refused(adapter: str) -> None:
    with pytest.raises(ConfigError, match=r"needs an engine, but vllm\.model_name 'scripted:first' has none"):
        builder(vllm=SCRIPTED, evaluation=[EvalEnvSpec(env_id="X-v0", fixed_opponent=adapter)])


def test_an_adapter_without_lora_is_refused(adapter: str) -> None:
    with pytest.raises(ConfigError, match=r"is a LoRA adapter, but vllm\.lora_config is not set"):
        builder(evaluation=[EvalEnvSpec(env_id="X-v0", fixed_opponent=adapter)])
    with pytest.raises(ConfigError, match=r"is a LoRA adapter, but vllm\.lora_config is not set"):
        builder(train=[TrainEnvSpec(env_id="A-v0", num_actors=1)], opponents=[adapter])


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (LoraConfig(lora_rank=1), r"rank r=4; the engine serves ranks 1 to 1\. Set vllm\.lora_config\.lora_rank to 8"),
        (LoraConfig(target_modules=("q_proj",)), r"Add 'down_proj' to vllm\.lora_config\.target_modules"),
    ],
)
def test_an_adapter_that_engines_would_not_serve_is_refused_before_they_start(
    adapter: str, lora: LoraConfig, message: str
) -> None:
    vllm = VLLMConfig(model_name="a/model", lora_config=lora)
    with pytest.raises(AdapterError, match=message):
        builder(vllm=vllm, train=[TrainEnvSpec(env_id="A-v0", num_actors=1)], opponents=[adapter])


def test_an_action_sampler_that_no_evaluation_could_use_is_refused_before_any() -> None:
    with pytest.raises(ConfigError, match=r"unknown action_sampler 'majorty'; .* Did you mean 'majority'"):
        builder(action_sampler="majorty", evaluation=[])
    greedy = VLLMConfig(model_name="a/model", temperature=0)
    with pytest.raises(ConfigError, match=r"action_sampler 'majority' at temperature 0 would count one completion"):
        builder(vllm=greedy)
    assert builder(vllm=greedy, evaluation=[]).train().agents[0].action_sampler == "default"
