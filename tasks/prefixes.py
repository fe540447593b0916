"""Packs sequences that begin alike into one row, where the tokens they share stand once. Standard library only.

The prompts of a game repeat its rules, and a player's next prompt repeats most of the last one. In a causal model a
token's state depends on the tokens before it in its own sequence and on nothing else, so that shared tokens need one
computation: a row is a tree of tokens in depth-first order, and a token attends to its ancestors alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tasks.learner_contracts import LearnerSample

LEAST_SHARE = 0.5  # of a sequence's tokens that must be in the row already; less is not worth the masked attention
MOST_LENGTH = 2.0  # of a row, in its longest sequences: attention goes with the square of a row's length


@dataclass(frozen=True)
class Row:
    """Sequences as one row of tokens.

    `positions[i]` is where token i stands in its own sequence; the tokens in [i, `ends[i]`) are those that may attend
    to it. `paths[k]` are the places in the row of the tokens of `samples[k]`.
    """

    samples: tuple[LearnerSample, ...]
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    ends: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]


def rows_of(samples: Iterable[LearnerSample], *, share: bool = True) -> list[Row]:
    """Pack sequences into rows; without `share` each is a row of its own."""
    groups: list[_Group] = []
    for sample in sorted(samples, key=lambda sample: sample.token_ids):  # what begins alike comes together
        if not (share and groups and groups[-1].take(sample)):
            groups.append(_Group(sample))
    return [group.row() for group in groups]


def micro_batches(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Cut into micro-batches whose padded size, rows times the longest, is at most `budget` tokens.

    Rows are sorted by length, longest first, so that little is padded and the largest comes first: if memory does not
    suffice it shows at once. A row above the budget is a micro-batch of its own.
    """
    cut: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: len(row.token_ids), reverse=True):
        if cut and (len(cut[-1]) + 1) * len(cut[-1][0].token_ids) <= budget:
            cut[-1].append(row)
        else:
            cut.append([row])
    return cut


class _Group:
    """Sequences that share a row, in order of their tokens."""

    def __init__(self, first: LearnerSample) -> None:
        self._samples = [first]
        self._shared = [0]  # for each sequence, how many tokens it has in common with the one before it
        self._length = self._longest = len(first.token_ids)

    def take(self, sample: LearnerSample) -> bool:
        """Add a sequence, if that pays."""
        tokens = len(sample.token_ids)
        shared = _common(self._samples[-1].token_ids, sample.token_ids)
        length, longest = self._length + tokens - shared, max(self._longest, tokens)
        if shared < LEAST_SHARE * tokens or length > MOST_LENGTH * longest:
            return False
        self._samples.append(sample)
        self._shared.append(shared)
        self._length, self._longest = length, longest
        return True

    def row(self) -> Row:
        """Lay the sequences out, each behind what it shares with the one before it."""
        token_ids: list[int] = []
        positions: list[int] = []
        ends: list[int] = []
        paths: list[tuple[int, ...]] = [()]
        for sample, shared in zip(self._samples, self._shared, strict=True):
            begin, end = len(token_ids), len(token_ids) + len(sample.token_ids) - shared
            token_ids += sample.token_ids[shared:]
            positions += range(shared, len(sample.token_ids))
            ends += [end] * (end - begin)
            path = paths[-1][:shared] + tuple(range(begin, end))
            for place in path[:shared]:
                ends[place] = end
            paths.append(path)
        return Row(tuple(self._samples), tuple(token_ids), tuple(positions), tuple(ends), tuple(paths[1:]))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """With how many equal tokens both begin."""
    differing = (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    return next(differing, min(len(left), len(right)))
