"""Fuzzing guided by coverage, in a process of its own: ``python -m attacks.guided READER FOLDER``.

Atheris is an optional package that takes over the process in which it runs and ends it, so what it finds is written as
it is found.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_COUNTS, _FOUND = "counts.json", "findings.json"
_EVERY = 50  # inputs between two writings of the counts
_INSTRUMENTED = ("gp_ensembles.tables", "gp_ensembles.cli", "gp_ensembles.files", "gp_ensembles.streaming", "yaml")


def run_guided(name: str, seconds: float, seed: int, crashes: Path) -> tuple[list[int], list[tuple[str, str]]]:
    """Fuzz a reader for so many seconds.

    Args:
        name: The reader.
        seconds: How long.
        seed: Of what is drawn.
        crashes: Where findings and new inputs go.

    Returns:
        Numbers of inputs (up to the last fifty), of those refused and of those read; and each finding with its file.

    Raises:
        RuntimeError: If the engine has ended otherwise than by its time.
    """
    from attacks.readers import CORPUS, READERS  # after the engine in its own process, see below

    folder = crashes / f"guided-{name}"
    (folder / "inputs").mkdir(parents=True, exist_ok=True)
    words = folder / "words.txt"
    quoted = ("".join(f"\\x{byte:02x}" for byte in word[:64]) for word in READERS[name].words)
    words.write_text("".join(f'"{word}"\n' for word in quoted), encoding="ascii")
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed + 1}", f"-dict={words}", "-timeout=60"]
    command = [sys.executable, "-m", "attacks.guided", name, str(folder), *options]
    command += ["-max_len=100000", "-rss_limit_mb=4096", str(folder / "inputs"), str(CORPUS / name)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0 or not (folder / _COUNTS).exists():
        raise RuntimeError(f"atheris ended with {done.returncode}: {done.stderr[-2000:]}")
    counts = json.loads((folder / _COUNTS).read_text(encoding="utf-8"))
    found = folder / _FOUND
    findings = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    return [counts["inputs"], counts["refused"], counts["read"]], list(findings.items())


def _main(name: str, folder: Path, options: list[str]) -> None:
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        from attacks.readers import READERS, try_input
    reader = READERS[name]
    path = folder / f"input{reader.suffix}"
    counts = {"inputs": 0, "refused": 0, "read": 0}
    found: dict[str, str] = {}

    def one_input(data: bytes) -> None:
        path.write_bytes(data)
        is_refused, what = try_input(reader, path)
        counts["inputs"] += 1
        counts["refused"] += is_refused
        counts["read"] += not is_refused and what is None
        if what is not None and what not in found:
            kept = folder / f"finding-{len(found)}{reader.suffix}"
            kept.write_bytes(data)
            found[what] = str(kept)
            (folder / _FOUND).write_text(json.dumps(found), encoding="utf-8")
        if counts["inputs"] % _EVERY == 1:
            (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")

    atheris.Setup([sys.argv[0], *options], one_input)
    fuzz: Callable[[], Any] = atheris.Fuzz
    fuzz()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
