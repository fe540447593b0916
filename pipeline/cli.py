"""The command line: `selfplay collect | train | config | show | verify | envs | worker`.

Commands load what they need when they are called.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tasks.errors import ConfigError, SelfplayError

EXIT_FAILED = 1
EXIT_WRONG_SETTINGS = 2
EXIT_INTERRUPTED = 130

OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.PATH=VALUE",
    help="Change one setting, e.g. --set vllm.temperature=0.7; the value is YAML. May be given many times.",
)
CONFIG = click.argument("config", type=click.Path(path_type=Path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of our own are said in plain words on standard error.

    Args:
        arguments: those of the process when None.

    Returns:
        The exit code: 0; 2 where a setting or the command line is wrong; 130 after Ctrl-C; 1 for other failures.
    """
    try:
        code: int | None = commands.main(arguments, prog_name="selfplay", standalone_mode=False)
    except ConfigError as error:
        click.echo(f"selfplay: {error}", err=True)
        return EXIT_WRONG_SETTINGS
    except SelfplayError as error:
        click.echo(f"selfplay: {error}", err=True)
        return EXIT_FAILED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return code or 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Self-play games of language models as a Dask dataflow."""


@commands.command()
@CONFIG
@OVERRIDES
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="The folder of the run.  [default: runs/NAME-TIMESTAMP]"
)
def collect(config: Path, overrides: Sequence[str], run_dir: Path | None) -> None:
    """Play games as CONFIG, a YAML file, says, until its buffer has enough.

    Ctrl-C once lets the games in flight finish, twice ends them; either way all that was played is kept.
    """
    from pipeline.config import load

    settings = load(config, overrides)
    if run_dir is None:
        run_dir = _new_run(settings.name)
    # The user's own samplers, buffers and prompts lie in the current folder, which an installed script does not search.
    sys.path.insert(0, os.getcwd())
    from pipeline.progress import Progress

    with Progress() as progress:
        progress.stage("loading")
        from pipeline.launch import run_collect

        run_collect(settings, run_dir, progress)


@commands.command()
@CONFIG
@OVERRIDES
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="The folder of the run.  [default: runs/NAME-TIMESTAMP]"
)
@click.option("--resume", is_flag=True, help="Go on with a run that ended early: the newest, or that in --run-dir.")
@click.option("--json", "as_json", is_flag=True, help="Print what the run came to as JSON, on the last line.")
def train(config: Path, overrides: Sequence[str], run_dir: Path | None, resume: bool, as_json: bool) -> None:
    """Play games and learn from them at once, as CONFIG, a YAML file with a `learner`, says.

    Ctrl-C once lets the games in flight finish, twice ends them; either way --resume goes on from the last learning
    step.
    """
    from pipeline.config import load

    settings = load(config, overrides)
    if run_dir is None:
        run_dir = _newest_run(settings.name) if resume else _new_run(settings.name)
    # The user's own samplers, buffers and prompts lie in the current folder, which an installed script does not search.
    sys.path.insert(0, os.getcwd())
    from pipeline.progress import Progress

    with Progress() as progress:
        progress.stage("loading")
        from pipeline.launch_train import run_train

        summary = run_train(settings, run_dir, progress, resume=resume)
    if as_json:
        click.echo(json.dumps({"run_dir": str(run_dir), **summary}))


@commands.command()
@CONFIG
@OVERRIDES
def config(config: Path, overrides: Sequence[str]) -> None:
    """Print CONFIG as a run would use it: checked, with every default."""
    from pipeline.config import dump, load

    click.echo(dump(load(config, overrides)), nl=False)


@commands.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("game_id", required=False)
@click.option("--ratings", is_flag=True, help="List the models' TrueSkill ratings instead.")
def show(run: Path, game_id: str | None, ratings: bool) -> None:
    """List the games of RUN, a run's folder; with GAME_ID, print one: saw, said, parsed, earned."""
    if ratings and game_id is not None:
        raise click.UsageError("--ratings are of the whole run; leave out GAME_ID")
    from pipeline.transcript import list_games, list_ratings, render_game

    if ratings:
        click.echo(list_ratings(run))
    else:
        click.echo(list_games(run) if game_id is None else render_game(run, game_id))


@commands.command()
@click.argument("run", type=click.Path(path_type=Path))
def verify(run: Path) -> int:
    """Play every game of RUN, a run's folder, again and check its files; what is wrong is named, and exits with 1."""
    # The user's own environments lie in the current folder, which an installed script does not search.
    sys.path.insert(0, os.getcwd())
    from pipeline.verify import verify_run

    report = verify_run(run)
    click.echo(str(report))
    return 0 if report.ok else EXIT_FAILED


@commands.command()
@click.option("--check", is_flag=True, help="Play each, and say of those that fail why and how to mend it.")
@click.argument("pattern", required=False)
def envs(check: bool, pattern: str | None) -> int:
    """List TextArena's environments: default id, players, other ids.

    With --check, play the default variant of every game, or all ids that match PATTERN (such as 'KuhnPoker*'), or one's
    own package.module:EnvClass; exits with 1 if one cannot be played.
    """
    if pattern is not None and not check:
        raise click.UsageError("PATTERN says what to --check; add --check")
    # The user's own environments lie in the current folder, which an installed script does not search.
    sys.path.insert(0, os.getcwd())
    from pipeline.environments import OK, check_environments, listing, verdict

    if not check:
        click.echo(listing())
        return 0
    checked = check_environments(pattern, on_checked=lambda found: click.echo(verdict(found)))
    return 0 if all(found.status == OK for found in checked) else EXIT_FAILED


@commands.command()
@click.argument("scheduler")
@click.option("--games", type=click.IntRange(min=1), metavar="N", help="Hold an engine, for at most N games at once.")
@click.option("--learner", is_flag=True, help="Learn instead.")
@click.option("--gpu", type=click.IntRange(min=0), metavar="INDEX", help="The one GPU the worker may use.")
@click.option(
    "--print", "print_only", is_flag=True, help="Print the plain `dask worker` command instead of running it."
)
def worker(scheduler: str, games: int | None, learner: bool, gpu: int | None, print_only: bool) -> None:
    """Run a Dask worker set up for one engine, or to learn, joining SCHEDULER: its address or its scheduler file."""
    if learner == (games is not None):
        raise click.UsageError("a worker holds an engine or learns: give --games N, or --learner")
    from pipeline.worker_command import DEATH_TIMEOUT_S, checked_scheduler, worker_command, worker_environment

    command = worker_command(checked_scheduler(scheduler), games)
    environment = worker_environment(gpu)
    if print_only:
        variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        click.echo(" ".join([*variables, shlex.join(command)]))
        return
    click.echo(f"selfplay: joining the scheduler of {scheduler}", err=True)
    from pipeline.scheduler_address import await_scheduler, await_scheduler_file

    # `dask worker` would wait for ever, and silently, for something that is no scheduler to answer.
    address = scheduler if "://" in scheduler else await_scheduler_file(Path(scheduler), DEATH_TIMEOUT_S)
    await_scheduler(address, DEATH_TIMEOUT_S)
    python = [sys.executable, "-m", "distributed.cli.dask_worker", *command[2:]]
    os.execve(sys.executable, python, {**os.environ, **environment})


def _new_run(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _newest_run(name: str) -> Path:
    """The run of this name that was started last."""
    found = sorted(Path("runs").glob(f"{name}-[0-9]*-[0-9]*"))
    if not found:
        raise click.UsageError(f"--resume finds no run runs/{name}-*; give its folder with --run-dir")
    return found[-1]


if __name__ == "__main__":
    sys.exit(main())
