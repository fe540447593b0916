"""What a person reads when a run is over: a table by environment, the totals, and where everything is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.ledger import EnvironmentTally, Ledger
from tasks.contracts import Mode, Status


def environments_table(ledger: Ledger) -> Table:
    """One row per environment and lane; win/draw/loss by player id."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("environment", "lane"):
        table.add_column(name, no_wrap=True)
    for name in ("games", "win/draw/loss by player", "mean turns", "illegal moves", "length stops", "failures"):
        table.add_column(name, justify="right")
    for _, tally in sorted(ledger.environments.items()):
        table.add_row(
            tally.env_id,
            tally.mode,
            str(tally.games),
            _results(tally),
            f"{tally.turns / tally.games:.1f}",
            str(tally.illegal_moves),
            f"{tally.length_stops} of {tally.engine_steps}" if tally.engine_steps else "-",
            str(tally.statuses[Status.FAILED.value]),
        )
    return table


def _results(tally: EnvironmentTally) -> str:
    if len(tally.players) == 1:
        player = tally.players[0]
        mean = player.reward_sum / player.rewards if player.rewards else float("nan")
        return f"solved {tally.solved} of {player.rewards}, mean reward {mean:.2f}"
    if not tally.players:
        return "none finished"
    return "\n".join(f"p{i} {player.wins}/{player.draws}/{player.losses}" for i, player in enumerate(tally.players))


def print_report(ledger: Ledger, run_dir: Path, tracking_uri: str, console: Console) -> None:
    """Print the table, the totals, where shards and MLflow store are, and three commands to look at them."""
    console.print(environments_table(ledger))
    total = sum(ledger.submitted.values())
    ends = {status: sum(ledger.statuses[mode][status] for mode in Mode) for status in Status}
    told = ", ".join(f"{count} {status.value}" for status, count in ends.items() if count)
    console.print(f"{total} games submitted: {told or 'none ended'}", highlight=False)
    groups = ledger.groups
    if groups.get("size", 1) > 1:
        told = ", ".join(f"{groups[name]} {name}" for name in ("complete", "incomplete", "dropped"))
        console.print(f"groups of {groups['size']} games: {told}", highlight=False)
    if ledger.generated_tokens:
        rate = f"{ledger.generated_tokens} tokens generated, {ledger.tokens_per_s:.0f} tokens/s"
        console.print(rate, highlight=False)
    first = f"{Mode.TRAIN.value}-000000"
    # A store in the run's own folder is named as the folder was.
    tracking_uri = tracking_uri.replace(f"sqlite:///{run_dir.resolve()}", f"sqlite:///{run_dir}")
    lines = [
        f"shards  {run_dir / 'replay'}",
        f"MLflow  {tracking_uri}",
        "",
        "Look at them:",
        f"  {command('selfplay')} show {run_dir}",
        f"  {command('selfplay')} show {run_dir} {first}",
        f"  {_look_at_tracking(tracking_uri)}",
    ]
    if not tracking_uri:
        del lines[-1], lines[1]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _look_at_tracking(uri: str) -> str:
    """A server shows itself; what lies in a file needs one."""
    if uri.startswith(("http://", "https://")):
        return f"{command('python')} -m webbrowser {uri}"
    return f"{command('mlflow')} ui --backend-store-uri {uri}"


def command(name: str) -> str:
    """How to call a program of this environment from here: its bare name if that finds it, else its path."""
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == own.resolve():
        return name
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
