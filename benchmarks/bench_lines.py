"""Streams of lines: what a line costs beside the model's own row, and how soon an answer comes through a pipe.

    python benchmarks/bench_lines.py [--rows 600] [--presets light auto]

Prints for each preset microseconds a line (read, encoded, predicted, learned, written), the model's share of them, and
from a process of its own the median and the 99th percentile of the time from writing a line to reading its answer; then
what a line costs while 20 or 90 rows before it wait for their targets.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import gp_ensembles as gpe
from gp_ensembles.cli.lines.protocol import read_line
from gp_ensembles.cli.lines.session import LineSession

WARMUP = 300


def lines(num_rows: int) -> list[str]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=num_rows)
    rows = zip(X, y, strict=True)
    return [json.dumps({"id": k, **{f"x{j}": x[j] for j in range(4)}, "y": float(t)}) for k, (x, t) in enumerate(rows)]


def inside(preset: str, text: list[str]) -> tuple[float, float]:
    """Microseconds a line, and those of the model alone."""
    session = LineSession(gpe.StreamConfig(getattr(gpe, preset), warmup=WARMUP), "y")
    for line in text[:WARMUP]:
        session.take(read_line(line, "y", "id"))
    assert session.model is not None
    rows = [json.loads(line) for line in text[WARMUP:]]
    X = torch.tensor([[row[f"x{j}"] for j in range(4)] for row in rows], dtype=torch.float64)
    y = torch.tensor([row["y"] for row in rows], dtype=torch.float64)
    model = gpe.OnlineModel.from_content(session.model.content())
    began = time.perf_counter()
    for line in text[WARMUP:]:
        json.dumps(session.take(read_line(line, "y", "id")))
    whole = time.perf_counter() - began
    began = time.perf_counter()
    for k in range(len(rows)):
        model.predict(X[k : k + 1])
        model.observe(X[k : k + 1], y[k : k + 1])
    alone = time.perf_counter() - began
    return 1e6 * whole / len(rows), 1e6 * alone / len(rows)


def behind(preset: str, text: list[str], num_waiting: int) -> float:
    """Median microseconds of a line without its target, behind so many rows that wait."""
    session, waits = LineSession(gpe.StreamConfig(getattr(gpe, preset), warmup=WARMUP), "y"), []
    for line in text[:WARMUP]:
        session.take(read_line(line, "y", "id"))
    for line in text[WARMUP : WARMUP + num_waiting + 5]:
        record = json.loads(line)
        del record["y"]
        began = time.perf_counter()
        json.dumps(session.take(read_line(json.dumps(record), "y", "id")))
        waits.append(time.perf_counter() - began)
    return 1e6 * float(np.median(waits[-5:]))


def through_a_pipe(preset: str, text: list[str]) -> tuple[float, float]:
    """Median and 99th percentile of milliseconds from a line to its answer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gp_ensembles", "stream", "-", "--format", "jsonl", "--target", "y"]
        command += ["--ensemble", preset, "--warmup", str(WARMUP), "--out", str(Path(folder) / "run")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, bufsize=1, **pipes) as process:  # type: ignore[call-overload]
            waits = []
            for line in text:
                began = time.perf_counter()
                process.stdin.write(line + "\n")
                process.stdin.flush()
                process.stdout.readline()
                waits.append(1e3 * (time.perf_counter() - began))
            process.stdin.close()
    late = waits[WARMUP + 5 :]
    return float(np.median(late)), float(np.quantile(late, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--presets", nargs="+", default=["light", "auto"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = lines(arguments.rows)
    print("preset   us a line   model alone   lines a second   answer median ms   99 % ms   behind 20 rows   behind 90")
    for preset in arguments.presets:
        whole, alone = inside(preset, text)
        median, slow = through_a_pipe(preset, text)
        line = f"{preset:<8} {whole:9.0f}   {alone:11.0f}   {1e6 / whole:14.0f}   {median:16.2f}   {slow:7.2f}"
        print(line + "".join(f"   {behind(preset, text, k):11.0f} us" for k in (20, 90)), flush=True)


if __name__ == "__main__":
    main()
