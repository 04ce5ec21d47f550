"""Columns as they are read compared with the same as plain numbers and with manual sines and cosines.

    python -m benchmarks.encodings --data FOLDER

Three tables that tell the time in numbers; as they are read they have a date instead. Mean log density in nats of rows
after a warm-up of a fifth of the first 3 000, at most 1 000.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import torch

from benchmarks.measured import Cell, keep
from gp_ensembles.ensembles.presets import auto, light
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.tables import open_rows

MOST_ROWS = 3000
Frames = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]  # numbers, by hand, with a date


def waves(frame: pd.DataFrame, column: str, period: float) -> pd.DataFrame:
    """Sine and cosine of a column."""
    angle = 2 * math.pi * frame[column] / period
    return pd.DataFrame(
        {f"sin_{column}_{period:g}": angle.map(math.sin), f"cos_{column}_{period:g}": angle.map(math.cos)}
    )


def bike_hourly(frame: pd.DataFrame) -> Frames:
    """Rented bicycles; the date stands for year, month, hour, day of the week and season, which follow from it."""
    implied = ["instant", "yr", "mnth", "hr", "weekday", "season"]
    day = (frame.hr.diff() < 0).cumsum()
    date = pd.Timestamp("2011-01-01") + pd.to_timedelta(24 * day + frame.hr, unit="h")
    others = frame.drop(columns=implied)
    by_hand = [waves(frame, "hr", 24), waves(frame, "weekday", 7), waves(frame, "mnth", 12), frame[["instant"]]]
    return frame, pd.concat([*by_hand, others], axis=1), pd.concat([date.rename("date"), others], axis=1)


def of_hours(frame: pd.DataFrame) -> Frames:
    """A table whose column ``hours`` counts them."""
    date = pd.Timestamp("2012-03-13") + pd.to_timedelta(frame.hours, unit="h")
    by_hand = pd.concat([frame, waves(frame, "hours", 24), waves(frame, "hours", 168)], axis=1)
    return frame, by_hand, pd.concat([date.rename("date"), frame.drop(columns="hours")], axis=1)


TABLES: dict[str, tuple[str, Callable[[pd.DataFrame], Frames]]] = {
    "bike_hourly": ("cnt", bike_hourly),
    "water_flow": ("flow", of_hours),
    "sml_ordered": ("humid_room", of_hours),
}


def score(frame: pd.DataFrame, target: str, preset: str) -> float:
    """The mean log density of rows after the warm-up."""
    warmup = min(1000, len(frame) // 5)
    spec = {"light": light, "auto": auto}[preset]
    rows = open_rows(frame, target, num_warm_up=warmup)
    model = OnlineModel(StreamConfig(spec, warmup=warmup))
    found = torch.cat([model.observe(batch.X, batch.y, batch.steps).log_prob for batch in rows])
    assert len(found) == len(frame) - warmup
    return float(found.nanmean())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[list[Cell]] = []
    for name, (target, made) in TABLES.items():
        frame = pd.read_csv(options.data / f"{name}.csv.gz").head(MOST_ROWS)
        frames = [each.assign(**{target: frame[target]}) for each in made(frame.drop(columns=target))]
        for preset in ("light", "auto"):
            cells = [f"{score(each, target, preset):.3f}" for each in frames]
            rows.append([f"{name}, `{preset}`", *cells])
            print(rows[-1], flush=True)
    columns = ["", "raw numbers", "manual sines and cosines", "automatic encoding"]
    keep("encodings", columns, rows)


if __name__ == "__main__":
    main()
