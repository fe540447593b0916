"""A few games of a run, chosen evenly from all that were played so far: the transcripts that MLflow keeps."""

from __future__ import annotations

import random

from tasks.contracts import Episode, Mode

TRANSCRIPTS = 5
"""Transcripts kept of each lane, however long the run."""


class TranscriptSample:
    """At any time a uniform sample of each lane's games so far, in places that are taken over as the run goes on.

    Reservoir sampling (Vitter 1985, Algorithm R): the n-th game enters with probability k / n and takes the place of
    one of the k there, so that n games mean about k (1 + ln(n / k)) transcripts to write. Games without a step are left
    out. Not thread-safe.
    """

    def __init__(self, places: int = TRANSCRIPTS, seed: int = 0) -> None:
        self._places = places
        self._random = random.Random(seed)
        self._seen = dict.fromkeys(Mode, 0)
        self._new: dict[str, Episode] = {}

    def add(self, episode: Episode) -> None:
        """Take one finished game, or leave it; a matter of microseconds."""
        if not episode.steps:
            return
        mode, seen = episode.spec.mode, self._seen[episode.spec.mode]
        self._seen[mode] += 1
        place = seen if seen < self._places else self._random.randrange(seen + 1)
        if place < self._places:
            self._new[f"transcripts/{mode}-{place}.txt"] = episode

    def take_new(self) -> dict[str, Episode]:
        """What changed since the last call: file names to the games that they now hold."""
        new, self._new = self._new, {}
        return new
