"""The games whose transcripts are kept: few, and evenly chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pipeline.transcript_sample import TranscriptSample
from tasks.contracts import Episode, Mode
from tests.unit.metric_games import game


def numbered(number: int, mode: Mode = Mode.TRAIN) -> Episode:
    episode = game(mode=mode)
    return replace(episode, spec=replace(episode.spec, game_id=str(number)))


def kept(games: int, seed: int, places: int = 5) -> dict[str, int]:
    """File names to the numbers of the games they hold at the end of a run of so many."""
    sample, files = TranscriptSample(places, seed), {}
    for number in range(games):
        sample.add(numbered(number))
        files |= {name: int(episode.spec.game_id) for name, episode in sample.take_new().items()}
    return files


def test_a_short_run_is_kept_whole() -> None:
    assert kept(3, seed=0) == {f"transcripts/train-{place}.txt": place for place in range(3)}


def test_a_long_run_keeps_a_few_and_each_game_once() -> None:
    files = kept(500, seed=0)
    assert sorted(files) == [f"transcripts/train-{place}.txt" for place in range(5)]
    assert len(set(files.values())) == 5
    assert files == kept(500, seed=0)
    assert files != kept(500, seed=1)


def test_every_game_is_as_likely_to_be_kept() -> None:
    # Of 20 games 5 are kept, 400 times: 2,000 in all, 100 of each game. Four standard deviations are 35.
    counts = Counter(number for seed in range(400) for number in kept(20, seed).values())
    assert len(counts) == 20
    assert all(abs(count - 100) < 35 for count in counts.values())


def test_each_lane_has_its_places_and_games_without_a_step_none() -> None:
    sample = TranscriptSample(places=2)
    sample.add(numbered(0, Mode.EVAL))
    sample.add(numbered(1))
    sample.add(game(steps=()))
    assert list(sample.take_new()) == ["transcripts/eval-0.txt", "transcripts/train-0.txt"]
    assert sample.take_new() == {}
