"""The registry listed, environments tried out in their own processes, and settings refused before anything starts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textarena.envs.registration import ENV_REGISTRY

from pipeline import environments, environments_page
from pipeline.cli import main
from pipeline.config import EvalEnvSpec, TrainEnvSpec
from pipeline.env_trials import Attempt, Ending, Findings, TrialProcess, diagnosis, find_out
from pipeline.environments import (
    CheckedEnvironment,
    GameEntry,
    check_environments,
    check_environments_of,
    list_games,
    players_text,
)
from tasks.env_check import Trial
from tasks.errors import ConfigError
from tests.environments.crash import CRASH
from tests.environments.slow import SLOW

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
SEATS = "tests.environments.seats:SeatsEnv"


def textarenas() -> list[GameEntry]:
    """TextArena's own games: other tests register more."""
    return [entry for entry in list_games() if str(ENV_REGISTRY[entry.env_id].entry_point).startswith("textarena.")]


def refused(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_environments_of([TrainEnvSpec(**settings)])
    return str(caught.value)


class Canned(TrialProcess):
    """No process: answers as it was told, and notes what it was asked (task and number of players)."""

    def __init__(self, answer: Callable[[str, int], Attempt]) -> None:
        super().__init__(1.0)
        self._answer = answer
        self.asked: list[tuple[str, int]] = []

    def attempt(self, task: str, trial: Trial) -> Attempt:
        self.asked.append((task, trial.num_players))
        return self._answer(task, trial.num_players)


class TestListing:
    def test_every_id_belongs_to_one_game(self) -> None:
        games = list_games()
        ids = [env_id for entry in games for env_id in entry.variants]
        assert len(games) >= 96
        assert len(ids) == len(set(ids)) >= 712
        assert all(entry.env_id in entry.variants for entry in games)
        assert {entry.env_id for entry in games} >= {"KuhnPoker-v0", "UsedCar-v0-balanced", "ColonelBlotto-v0"}

    def test_players_as_they_were_found(self) -> None:
        found = {entry.game: players_text(entry.players) for entry in list_games()}
        assert (found["KuhnPoker"], found["Sokoban"], found["LiarsDice"]) == ("2", "1", "2–15")
        assert (found["SecretMafia"], found["Chess"], found["Codenames"]) == ("6–15", "2", "4")

    @pytest.mark.parametrize(
        ("players", "text"),
        [
            ((), "?"),
            ((4,), "4"),
            ((2, 3, 4), "2–4"),
            (tuple(range(2, 17)), "2 or more"),
            ((4, 6, 8), "4–8, even"),
            ((4, 6, 8, 10, 12, 14, 16), "4 or more, even"),
            ((2, 5, 9), "2, 5, 9"),
        ],
    )
    def test_players_in_words(self, players: tuple[int, ...], text: str) -> None:
        assert players_text(players) == text


class TestPage:
    """After a new TextArena: `python -m pipeline.environments_page`."""

    ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]

    def test_it_has_every_game_with_the_players_on_record(self) -> None:
        shown = [tuple(cell.strip() for cell in row.split("|")[1:4]) for row in self.ROWS]
        assert shown == [(entry.game, f"`{entry.env_id}`", players_text(entry.players)) for entry in textarenas()]

    def test_most_games_are_ok_and_every_other_has_a_remedy(self) -> None:
        results = [tuple(cell.strip() for cell in row.split("|")[4:6]) for row in self.ROWS]
        assert sum(status == "ok" for status, _ in results) >= 73
        assert all(status and bool(remedy) == (status != "ok") for status, remedy in results)

    def test_it_is_what_the_command_writes(self) -> None:
        checked = []
        for entry, row in zip(textarenas(), self.ROWS, strict=True):
            status, remedy = (cell.strip() for cell in row.split("|")[4:6])
            checked.append(CheckedEnvironment(entry.game, entry.env_id, entry.players, status, remedy))
        written, version = environments_page.page(checked), re.compile(r"Python 3\.\d+|TextArena [\d.]+ ")
        assert version.sub("", PAGE.read_text(encoding="utf-8")) == version.sub("", written)


class TestChecking:
    def test_all_variants_that_match_are_played(self) -> None:
        heard: list[CheckedEnvironment] = []
        checked = check_environments("KuhnPoker-v0-short*", processes=1, on_checked=heard.append)
        assert [row.env_id for row in checked] == [f"KuhnPoker-v0-short{ending}" for ending in ("", "-train", "-raw")]
        assert {(row.players, row.status, row.remedy) for row in checked} == {((2,), "ok", "")}
        assert heard == checked

    def test_an_environment_of_ones_own(self) -> None:
        (row,) = check_environments("configs.examples.nearest_number:NearestNumber")
        assert (row.game, players_text(row.players), row.status) == ("NearestNumber", "2 or more", "ok")

    def test_a_pattern_without_a_match_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"no environment's id matches 'KuhnPocker-v0'.* Did you mean 'KuhnPoker"):
            check_environments("KuhnPocker-v0")
        with pytest.raises(
            ConfigError, match=r"matches 'kuhn'; `selfplay envs` lists them\. Did you mean 'KuhnPoker-v0"
        ):
            check_environments("kuhn")

    def test_one_that_hangs_and_one_that_crashes_cost_their_attempt_only(self) -> None:
        with TrialProcess(5.0) as process:
            hang = Trial(SLOW, 2, {"hang": True})
            crash = Trial(CRASH, 2)
            assert process.attempt("moves", hang) == Attempt(Ending.HUNG, "did not come back within 5 s")
            assert process.attempt("moves", crash) == Attempt(
                Ending.CRASHED, "brought its process down (exit status 3)"
            )
            assert process.attempt("game", Trial("KuhnPoker-v0", 2)) == Attempt(Ending.FINE)

    def test_what_cannot_be_made_is_not_tried_for_every_number_of_players(self) -> None:
        said = "X could not be made: ValueError: Please set the OPENROUTER_API_KEY environment variable."
        process = Canned(lambda task, count: Attempt(Ending.FAULT, said))
        assert find_out(process, "Debate-v0").players == (2,)  # from its source
        assert process.asked == [("moves", 1)]

    def test_one_that_hangs_is_not_tried_for_every_number_of_players(self) -> None:
        hung = Attempt(Ending.HUNG, "did not come back within 60 s")
        process = Canned(lambda task, count: hung)
        found = find_out(process, "Debate-v0")
        assert (found.reason, found.players) == ("did not come back within 60 s", (2,))
        assert process.asked == [("moves", 1), ("moves", 2)]

    def test_one_that_hangs_with_more_players_is_played_with_fewer(self) -> None:
        hung = Attempt(Ending.HUNG, "did not come back within 60 s")
        process = Canned(lambda task, count: hung if count in (1, 4) else Attempt(Ending.FINE))
        assert find_out(process, "Debate-v0") == Findings((2, 3))
        assert process.asked == [*(("moves", count) for count in (1, 2, 3, 4)), ("game", 2), ("game", 3)]

    @pytest.mark.parametrize(
        ("failure", "reason", "remedy"),
        [
            (
                "X could not be made: LookupError: Resource 'words' not found.",
                "needs NLTK's data `words`",
                "nltk.downloader words",
            ),
            ("... set the OPENROUTER_API_KEY environment variable.", "needs an OpenRouter key", "OPENROUTER_API_KEY"),
            ("ModuleNotFoundError: No module named 'gym'.", "needs the module `gym`", "install `gym`"),
            (
                "No module named 'textarena.envs.UsedCar'",
                "TextArena's package lacks its module `textarena.envs.UsedCar`",
                "leave it out",
            ),
            (
                "FileNotFoundError: No such file or directory: '/a/textarena/envs/Car/book.txt'",
                "TextArena's package lacks its file `Car/book.txt`",
                "TextArena's repository",
            ),
            ("X failed at /home/me/x/env.py | badly", "X failed at …/env.py / badly", "leave it out"),
        ],
    )
    def test_diagnoses(self, failure: str, reason: str, remedy: str) -> None:
        found = diagnosis(failure)
        assert found[0] == reason
        assert remedy in found[1]

    def test_new_syntax_wants_a_new_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.version_info", (3, 11, 9))
        assert diagnosis("SyntaxError: f-string: unmatched '['")[0] == "needs Python 3.12"
        monkeypatch.setattr("sys.version_info", (3, 12, 0))
        assert diagnosis("SyntaxError: f-string: unmatched '['")[0] == "SyntaxError: f-string: unmatched '['"


class TestRefusals:
    """Before anything starts."""

    def test_a_wrong_id(self) -> None:
        assert "unknown env_id 'KuhnPocker-v0'" in refused(env_id="KuhnPocker-v0")
        assert "Did you mean 'KuhnPoker-v0'" in refused(env_id="KuhnPocker-v0")
        assert "Did you mean 'KuhnPoker-v0'" in refused(env_id="kuhn")

    @pytest.mark.parametrize(
        ("env_id", "wrong", "right"),
        [
            ("KuhnPoker-v0-train", 3, "2"),
            ("LiarsDice-v0", 16, "2–15"),
            ("Sokoban-v0-train", 2, "1"),
            ("PublicGoodsGame-v0", 1, "2 or more"),
            ("ColonelBlotto-v0-small", 3, "2"),  # a variant of its own is made to find out
            ("configs.examples.nearest_number:NearestNumber", 1, "2 or more"),
        ],
    )
    def test_a_wrong_number_of_players(self, env_id: str, wrong: int, right: str) -> None:
        assert refused(env_id=env_id, num_players=wrong) == (
            f"num_players is {wrong}, but {env_id} is played with {right}; set it so."
        )

    @pytest.mark.parametrize("kwargs", [{"api_key": "sk-1"}, {"judge": [{"OPENAI-API-KEY": "sk-1"}]}])
    def test_a_secret_among_the_arguments_is_not_shown(self, kwargs: dict[str, Any]) -> None:
        message = refused(env_id="KuhnPoker-v0", env_kwargs=kwargs)
        assert re.search(r"env_kwargs: (api_key|OPENAI-API-KEY) is a secret, which no config may hold", message)
        assert "sk-1" not in message

    def test_an_error_allowance_where_there_is_none(self) -> None:
        message = refused(env_id="tests.environments:StatelessEnv", error_allowance=2)
        assert "tests.environments:StatelessEnv has no error_allowance to set to 2; leave it unset" in message

    @pytest.mark.parametrize(
        ("setting", "name", "nearest"),
        [("prompt_template", "defualt", "'default'"), ("action_extraction", "boxes", "'boxed'")],
    )
    def test_wrong_names(self, setting: str, name: str, nearest: str) -> None:
        message = refused(env_id="KuhnPoker-v0", **{setting: name})
        assert f"unknown {setting} '{name}'" in message
        assert f"Did you mean {nearest}" in message

    def test_evaluation_environments_are_checked_as_well(self) -> None:
        with pytest.raises(ConfigError, match="num_players is 3, but KuhnPoker-v0 is played with 2"):
            check_environments_of(
                [TrainEnvSpec(env_id="KuhnPoker-v0"), EvalEnvSpec(env_id="KuhnPoker-v0", num_players=3)]
            )

    def test_what_is_on_the_workers_only_is_left_to_them(self) -> None:
        check_environments_of(
            [
                TrainEnvSpec(
                    env_id="not_here.envs:Env", prompt_template="not_here:template", action_extraction="not_here:f"
                )
            ]
        )

    def test_what_cannot_be_made_is_refused_where_it_would_be_played(self) -> None:
        broken = TrainEnvSpec(env_id="tests.environments:OddEnv", env_kwargs={"fault": "made"})
        check_environments_of([broken])
        with pytest.raises(ConfigError, match="OddEnv could not be made: KeyError"):
            check_environments_of([broken], played_here=True)

    @pytest.mark.parametrize(
        ("kwargs", "status"),
        [({}, "exit status 3"), ({"where": "reset", "segfault": True}, "exit status -11, SIGSEGV")],
    )
    def test_one_that_ends_its_process_is_refused_and_this_one_lives(self, kwargs: dict[str, Any], status: str) -> None:
        assert refused(env_id=CRASH, env_kwargs=kwargs) == (
            f"{CRASH} brought its process down ({status}) when it was made and reset for 2 players; expected "
            "exceptions for what goes wrong: it would end workers likewise, and all their games. Mend or remove it."
        )

    def test_what_is_slow_to_make_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(environments, "FIRST_LOOK_S", 0.1)
        started = time.monotonic()
        check_environments_of([TrainEnvSpec(env_id=SLOW, env_kwargs={"where": "made", "hang": True})] * 3)
        assert time.monotonic() - started < 10.0


def test_the_players_on_record_are_json_by_game() -> None:
    record = json.loads(environments.PLAYERS_FILE.read_text(encoding="utf-8"))
    assert list(record) == [entry.game for entry in textarenas()]


class TestCommand:
    def test_envs_lists_every_game(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["envs"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["DEFAULT", "ID", "PLAYERS", "OTHER", "IDS"]
        assert len(lines) == 1 + len(list_games())
        (liars_dice,) = (line for line in lines if line.startswith("LiarsDice-v0 "))
        assert liars_dice.split()[1:3] == ["2–15", "LiarsDice-v0-small"]

    def test_check_says_how_to_mend_what_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["envs", "--check", "Us*Car-v0-balanced"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "no   UsedCar-v0-balanced: TextArena's package lacks its module `textarena.envs.UsedCar`; "
            "leave it out; TextArena's repository may have it",
        ]

    def test_a_pattern_needs_check(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["envs", "TicTacToe-v0"]) == 2
        assert "PATTERN says what to --check; add --check" in capsys.readouterr().err
