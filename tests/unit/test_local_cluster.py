"""Which GPU each worker of a local cluster sees."""

from __future__ import annotations

import pytest

from pipeline.local_cluster import gpu_environments, visible_gpus
from tasks.errors import ClusterError


def seen(engines: int, learner: str, gpus: list[str]) -> list[str | None]:
    return [place.get("CUDA_VISIBLE_DEVICES") for place in gpu_environments(engines, learner, gpus)]  # type: ignore[arg-type]


def test_engines_have_a_gpu_each_and_the_learner_the_next() -> None:
    assert seen(2, "none", ["0", "1", "2"]) == ["0", "1"]
    assert seen(2, "own_gpu", ["4", "5", "7"]) == ["4", "5", "7"]
    assert seen(2, "shared_gpu", ["0", "1"]) == ["0", "1", "0"]


def test_without_gpus_nothing_is_said() -> None:
    assert seen(2, "own_gpu", []) == [None, None, None]


def test_too_few_gpus_are_refused_with_what_would_do() -> None:
    with pytest.raises(ClusterError, match=r"1 engines and a learner need a GPU each, 2 in all; there are 1\. Lower"):
        gpu_environments(1, "own_gpu", ["0"])


@pytest.mark.parametrize(("value", "gpus"), [("2,3", ["2", "3"]), ("", []), ("-1", []), ("GPU-ab", ["GPU-ab"])])
def test_the_gpus_chosen_in_the_environment_are_the_ones_there_are(
    monkeypatch: pytest.MonkeyPatch, value: str, gpus: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == gpus
