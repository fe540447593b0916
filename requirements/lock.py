"""Resolve cpu.lock anew: `python3 requirements/lock.py`. Needs `uv` on the PATH (`pip install uv`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXTRAS = ("vllm", "dev")


def main() -> int:
    """Resolve the lock anew; the exit status."""
    uv = shutil.which("uv")
    if uv is None:
        print("lock: `uv` was not found on the PATH; it resolves the lock: pip install uv", file=sys.stderr)
        return 2
    lock = HERE / "cpu.lock"
    header = "".join(line for line in lock.read_text().splitlines(keepends=True) if line.startswith("#"))
    command = [uv, "pip", "compile", str(HERE.parent / "pyproject.toml"), str(HERE / "cpu.in"), "--quiet"]
    command += [argument for extra in EXTRAS for argument in ("--extra", extra)]
    command += ["--override", str(HERE / "cpu-overrides.txt"), "--python-version", "3.11"]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--no-annotate", "--no-header", "--upgrade"]
    resolved = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lock.write_text(header + resolved)
    print(f"lock: {len(resolved.splitlines())} packages in {lock}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
