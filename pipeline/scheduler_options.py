"""How a scheduler bears with trouble, and how often it plays each training game."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.groups import IncompleteGroups


@dataclass(frozen=True)
class SchedulerOptions:
    """How the scheduler bears with trouble, and how often it plays each training game.

    Args:
        prefetch: games queued beyond the quota, as a share of it, so that no slot waits for the driver.
        retries: how often a game whose worker or engine died is played again.
        max_consecutive_failures: failed games in a row that end the run.
        group_size: how often each training game is played, with the same seed and players and replies sampled anew.
        incomplete_groups: whether the buffer gets what is left of a group that lost some game, or nothing of it.
    """

    prefetch: float = 0.25
    retries: int = 2
    max_consecutive_failures: int = 20
    group_size: int = 1
    incomplete_groups: IncompleteGroups = "deliver"
