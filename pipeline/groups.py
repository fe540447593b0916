"""Groups on their way to the buffer: what their games gave is held until all have ended, then delivered or dropped.

A group is one environment and seed played several times by the same players at the same seats. Algorithms that compare
its games with each other need to know of every one, so a group that lost some says so, or does not arrive at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from pipeline.replay import TRAINABLE, ReplayBuffer
from tasks.contracts import Episode, Role, Status, Trajectory
from tasks.errors import ConfigError

IncompleteGroups = Literal["deliver", "drop"]
# What a buffer is shown; whether it keeps truncated games, which pay nothing, is its own policy.
SHOWN = TRAINABLE | {Status.TRUNCATED}


@dataclass
class GroupCounts:
    """Groups that have ended, each in one count.

    `complete` were delivered with every game, `incomplete` with some missing; `dropped` gave the buffer nothing, by the
    policy or because none of their games had an end to learn from.
    """

    size: int
    complete: int = 0
    incomplete: int = 0
    dropped: int = 0


class GroupGate:
    """Gives a buffer the trajectories of whole groups, in the order of their games, once the last of these has ended.

    Every trajectory says how many games its group has (`group_size`) and how many of them gave its player something to
    learn from (`group_delivered`): a game counts that was `completed` or ended by an `illegal_move` and paid the player
    something, and a `truncated` one if the buffer accepts these; not one whose every step lacks its log-probabilities.

    Args:
        buffer: what the trajectories of learning players go to.
        size: games in a group; 1 lets every game through as it ends.
        incomplete: what becomes of a group of which some game does not count: "deliver" the rest, or "drop" all of it.

    Raises:
        ConfigError: `size` is below 1, or `incomplete` is no such policy.
    """

    def __init__(self, buffer: ReplayBuffer, size: int = 1, incomplete: IncompleteGroups = "deliver") -> None:
        if size < 1:
            raise ConfigError(f"group_size is {size}: expected at least 1 game in a group")
        if incomplete not in get_args(IncompleteGroups):
            raise ConfigError(f"incomplete_groups is {incomplete!r}: expected 'deliver' or 'drop'")
        self._buffer = buffer
        self.accepted: frozenset[Status] = getattr(buffer, "accepted", SHOWN)
        self._drops = incomplete == "drop"
        self._open: dict[str, list[Episode]] = {}
        self._counts = GroupCounts(size)

    def add(self, episode: Episode) -> None:
        """Take one ended training game, whatever its status; the last of a group sends the group on."""
        group_id = episode.spec.group_id
        members = self._open.setdefault(group_id, [])
        members.append(episode)
        if len(members) == self._counts.size:
            del self._open[group_id]
            self._send(sorted(members, key=lambda member: member.spec.group_index))

    def state(self) -> dict[str, Any]:
        """The groups that wait for games, and the counts, for a checkpoint; values that pickle."""
        return {"open": {group: list(members) for group, members in self._open.items()}, "counts": self.counts()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._open = {group: list(members) for group, members in state["open"].items()}
        self._counts = GroupCounts(**{**state["counts"], "size": self._counts.size})

    def close_open(self) -> None:
        """Send on the groups that still wait for games, as short as they are: those games will never come."""
        waiting, self._open = self._open, {}
        for members in waiting.values():
            self._send(sorted(members, key=lambda member: member.spec.group_index))

    def counts(self) -> dict[str, int]:
        """The counts up to now, as `summary.json` has them."""
        return asdict(self._counts)

    def _send(self, members: Sequence[Episode]) -> None:
        seats = [agent.player_id for agent in members[0].spec.agents if agent.role is Role.ACTOR]
        delivered = {seat: sum(self._counts_in(member.trajectory(seat)) for member in members) for seat in seats}
        complete = all(count == self._counts.size for count in delivered.values())
        if complete:
            self._counts.complete += 1
        elif self._drops or not any(delivered.values()):
            self._counts.dropped += 1
        else:
            self._counts.incomplete += 1
        if self._drops and not complete:
            return
        for member in members:
            if member.status not in SHOWN:
                continue
            for seat in seats:
                trajectory = replace(
                    member.trajectory(seat), group_size=self._counts.size, group_delivered=delivered[seat]
                )
                self._buffer.add_player_trajectory(trajectory, member.spec.env_id)

    def _counts_in(self, trajectory: Trajectory) -> bool:
        reward = trajectory.final_reward
        paid = (reward is not None and math.isfinite(reward)) or trajectory.status is Status.TRUNCATED
        flagged = bool(trajectory.steps) and not any(step.choice.logprobs_ok for step in trajectory.steps)
        return trajectory.status in self.accepted and paid and not flagged
