"""What `import pipeline` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pipeline


@pytest.mark.parametrize("name", pipeline.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pipeline, name).__name__ == name


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'GameSheduler'"):
        _ = pipeline.GameSheduler


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("dask", "mlflow", "pyarrow", "pydantic", "torch")
    code = f"import sys, pipeline; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
