"""AutoETS of statsforecast refitted at every origin: run by the Python that has it, which need not have this library.

    PATH/TO/python -m benchmarks.backtest_autoets JOBS.json FORECASTS.json

`benchmarks/backtest.py` writes the jobs, a list of {"name", "targets", "season", "horizon", "origins", "levels"}, and
reads the answers: for each job the quantiles of every origin, step and level, and the CPU seconds of every origin.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from statsforecast.models import AutoETS


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Quantiles (O, H, K) at central intervals of the levels (K,), which come in pairs, and seconds (O,)."""
    y, levels = np.asarray(job["targets"], dtype=float), job["levels"]
    coverages = [_percent(level) for level in levels if level < 0.5]
    quantiles, seconds = [], []
    for origin in job["origins"]:
        start = time.process_time()
        predicted = AutoETS(season_length=job["season"]).fit(y[:origin]).predict(job["horizon"], level=coverages)
        seconds.append(time.process_time() - start)
        columns = []
        for level in levels:
            side = "lo" if level < 0.5 else "hi"
            columns.append(predicted["mean"] if level == 0.5 else predicted[f"{side}-{_percent(level)}"])
        quantiles.append(np.stack(columns, -1).tolist())
        print(job["name"], origin, f"{seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    return {"name": job["name"], "quantiles": quantiles, "seconds": seconds}


def _percent(level: float) -> int:
    """What the central interval with an end at this level covers; columns are named after whole numbers."""
    return round(100 * abs(1 - 2 * level))


def main() -> None:
    """Answer all jobs, once each so that nothing is compiled while time is taken."""
    warnings.simplefilter("ignore")
    jobs = json.loads(Path(sys.argv[1]).read_text())
    AutoETS(season_length=4).fit(np.sin(np.arange(40.0)) + 2).predict(2, level=[80])
    Path(sys.argv[2]).write_text(json.dumps([answer(job) for job in jobs]))


if __name__ == "__main__":
    main()
