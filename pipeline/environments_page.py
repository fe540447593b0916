"""Writes `docs/environments.md` and `pipeline/players.json` from trying every game: a few minutes.

python -m pipeline.environments_page
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from pipeline.environments import (
    OK,
    PLAYERS_FILE,
    CheckedEnvironment,
    check_environments,
    list_games,
    players_text,
)

PAGE = Path(__file__).parents[1] / "docs" / "environments.md"
TABLE = ("| game | env id | players | status | remedy |", "|---|---|---|---|---|")

_INTRODUCTION = """# Environments

Every game that TextArena {textarena} registers, its default variant tried without network access on Python {python}:
made, reset, and played by the scripted random agent with the fewest and the most players it takes, up to 200 turns
each. {ok} of {games} can be played as they are. Made by `python -m pipeline.environments_page`, which also writes down
the numbers of players; `selfplay envs --check 'KuhnPoker*'` tries any of the {ids} ids where you are.

`players` is what the environment accepts, not what its rules recommend; *or more* means that nothing up to 16 was
refused.
"""


def page(checked: Sequence[CheckedEnvironment]) -> str:
    """The whole page, a table row for each environment."""
    introduction = _INTRODUCTION.format(
        textarena=version("textarena"),
        python=".".join(platform.python_version_tuple()[:2]),
        ok=sum(row.status == OK for row in checked),
        games=len(checked),
        ids=sum(len(entry.variants) for entry in list_games() if entry.game in {row.game for row in checked}),
    )
    return "\n".join([introduction, *TABLE, *map(table_row, checked), ""])


def table_row(checked: CheckedEnvironment) -> str:
    """One line of the table."""
    cells = (checked.game, f"`{checked.env_id}`", players_text(checked.players), checked.status, checked.remedy)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def main() -> None:
    """Try every game and write both files."""
    checked = check_environments(on_checked=lambda row: print(table_row(row), flush=True))
    by_game = [f"  {json.dumps(row.game)}: {json.dumps(row.players)}" for row in checked]
    PLAYERS_FILE.write_text("{\n" + ",\n".join(by_game) + "\n}\n", encoding="utf-8")
    PAGE.write_text(page(checked), encoding="utf-8")


if __name__ == "__main__":
    main()
