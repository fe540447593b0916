"""The README's ten lines of Python do what it says, as a script in an empty folder."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.shards import read_episodes

README = Path(__file__).resolve().parents[2] / "README.md"

pytestmark = pytest.mark.cluster


def test_the_ten_lines_play_a_hundred_games(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    script = tmp_path / "readme.py"
    script.write_text(code)
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    statuses = ast.literal_eval(ran.stdout)
    assert statuses["completed"] >= 100
    assert read_episodes(tmp_path / "runs" / "readme").num_rows == sum(statuses.values())
