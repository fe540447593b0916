"""A collection from its configuration: puts the parts together, plays, and leaves a folder that explains itself.

`RUN/` holds `config.yaml` (resolved), `replay/` (shards), `registry.json`, `summary.json`, `README.md` (the dataset's
card), and `mlflow.db` unless a tracking server is named.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from pipeline.cluster import connect
from pipeline.config import RunConfig, VLLMConfig, dump
from pipeline.dataset_card import write_card
from pipeline.environments import check_environments_of
from pipeline.episode_store import EpisodeStore
from pipeline.ledger import Ledger
from pipeline.model_registry import ModelRegistry
from pipeline.progress import Progress
from pipeline.replay import TrajectoryBuffer
from pipeline.run_parts import make_buffer, make_scheduler, make_tracker, report_at_the_end, slots_of
from tasks.base_model import check_target_modules, read_base
from tasks.models import resolve_model


def run_collect(config: RunConfig, run_dir: Path, progress: Progress) -> Ledger:
    """Collect as configured into `run_dir`.

    Args:
        config: the whole run.
        run_dir: made if missing; refused if it holds another run's shards.
        progress: shows the stages and the games.

    Returns:
        The books of the collection, as in `summary.json`.

    Raises:
        SelfplayError: with advice, from whichever part refuses.
        KeyboardInterrupt: after Ctrl-C, when everything has been written.
    """
    environments = [*config.environments.train, *config.environments.eval]
    check_environments_of(environments, played_here=config.cluster.kind == "local")
    engine = config.vllm.engine_spec(config.seed).factory is not None
    if engine and config.cluster.kind == "local":
        _check_model(config.vllm, progress)
    with ExitStack() as stack:
        books = stack.enter_context(report_at_the_end(run_dir))
        stack.callback(progress.close)
        store = stack.enter_context(
            EpisodeStore(run_dir, config.store.episodes_per_shard, config.store.seconds_per_shard)
        )
        (run_dir / "config.yaml").write_text(dump(config), encoding="utf-8")
        tracker = stack.enter_context(make_tracker(config, run_dir))
        tracker.log_params(config.model_dump(mode="json"))
        books.tracking_uri = tracker.uri
        progress.stage("connecting to the cluster")
        client = stack.enter_context(connect(config.cluster, slots=slots_of(config), engine=engine))
        progress.stage("starting engines" if engine else "starting")
        registry = ModelRegistry(config.vllm.policy(), run_dir / "registry.json")
        buffer = make_buffer(config)
        scheduler = make_scheduler(config, client, tracker, buffer, registry, store)
        books.ledger = scheduler.ledger
        progress.watch(lambda: scheduler.snapshot)
        try:
            return scheduler.collect(config.collect.num_train_workers, config.collect.num_eval_workers)
        finally:
            progress.stage("stopping")
            if isinstance(buffer, TrajectoryBuffer):
                scheduler.ledger.buffer = asdict(buffer.stats())
            registry.save()
            scheduler.ledger.write(run_dir / "summary.json")
            write_card(run_dir, scheduler.ledger.summary())


def _check_model(vllm: VLLMConfig, progress: Progress) -> None:
    """See that the model is there and has what adapters are to change.

    Here rather than on the worker, so that the first run's minute of building shows.
    """
    resolve_model(vllm.model_name, on_progress=progress.stage)
    if vllm.lora_config is not None:
        base = read_base(vllm.model_name)
        check_target_modules(base.name, base.shapes, vllm.lora_config.target_modules)
