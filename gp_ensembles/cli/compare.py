"""Comparison of several configs on one stream, in one table with the baselines."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gp_ensembles.cli.config import load_config
from gp_ensembles.cli.named_configs import config_titles, find_config
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.running import EXPECTED, one_sentence, progress_bar
from gp_ensembles.cli.scored_stream import ScoredStream, take_warm_up
from gp_ensembles.cli.summary import format_table, summarize_run
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.files.replacing import PARTIAL, replace_together, write_json, write_text
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.tables import RowStream

_COLUMNS = (
    "num_experts", "nmse", "log_score", "log_score_standardized", "log_score_gaussian", "crps", "coverage_90",
    "fit_seconds", "microseconds_per_row",
)  # fmt: skip
_FILES = ("compare.json", "compare.csv")


def load_named_configs(paths: Sequence[Path], given: Mapping[str, Any]) -> dict[str, StreamConfig]:
    """Configs by name or file, under their names or the stems; settings that are given override all of them."""
    overrides = {name: value for name, value in given.items() if value is not None}
    configs, bundled = dict[str, StreamConfig](), config_titles()
    for given_path in paths:
        path = find_config(given_path)
        name = str(given_path) if str(given_path) in bundled else path.stem
        if name in configs:
            raise ValueError(f"two configs are named {name!r}; give the files different names")
        configs[name] = replace(load_config(path), **overrides)
    warmups = {config.warmup for config in configs.values()}
    if len(warmups) > 1:
        raise ValueError(
            f"the configs have different warm-ups ({sorted(warmups)}), so they would be scored on different rows; "
            f"set one with --warmup"
        )
    return configs


def with_seeds(configs: Mapping[str, StreamConfig], seeds: Sequence[int]) -> dict[str, StreamConfig]:
    """Each config with each seed, all different, grouped by config; unchanged without seeds."""
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds repeats a seed: {list(seeds)}")
    if not seeds:
        return dict(configs)
    return {_seeded(name, seed): replace(config, seed=seed) for name, config in configs.items() for seed in seeds}


def over_seeds(name: str, results: Mapping[str, Mapping[str, object]], seeds: Sequence[int]) -> str:
    """A sentence on a config with all seeds: mean and standard deviation of its log scores."""
    scores = [_log_score(results[_seeded(name, seed)]) for seed in seeds]
    done = [score for score in scores if math.isfinite(score)]
    if len(done) < 2:
        return f"{name}: {len(done)} of {len(seeds)} seeds have a log score"
    return (
        f"{name}: log_score {mean(done):.4g} on average over {len(done)} seeds, with a standard deviation of "
        f"{stdev(done):.4g}"
    )


def compare(
    opened: Callable[[StreamConfig], RowStream],
    configs: Mapping[str, StreamConfig],
    out: Path,
    *,
    progress: bool = False,
) -> dict[str, dict[str, object]]:
    """Run each config on the same rows; ``compare.json`` and ``compare.csv`` are replaced when all are done."""
    first = next(iter(configs.values()))
    take_warm_up(first, opened(first))  # a refused table leaves no folder behind
    make_writable(out)
    results: dict[str, dict[str, object]] = {}
    columns = (*_COLUMNS, "error")
    baselines: dict[str, dict[str, object]] = {}
    for name, config in configs.items():
        try:
            results[name] = score_config(opened(config), config, name, progress)
            found = results[name].pop("baselines")
            assert isinstance(found, dict)
            baselines = baselines or found
        except Exception as error:  # a config that fails must not cost the others their results
            kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
            results[name] = {"model": config.ensemble.name, "error": kind + one_sentence(error)}
            print(f"gp-ensembles: {name} failed: {kind}{one_sentence(error)}", file=sys.stderr)
        both = {**results, **baselines}
        write_json(out / (_FILES[0] + PARTIAL), both)
        write_text(
            out / (_FILES[1] + PARTIAL),
            as_csv(["name", *columns], [[name, *map(found.get, columns)] for name, found in both.items()]),
        )
    if any("error" not in result for result in results.values()):  # failures alone replace nothing
        replace_together(out, {name + PARTIAL: name for name in _FILES})
    return {**results, **baselines}


def score_config(rows: RowStream, config: StreamConfig, name: str, progress: bool = False) -> dict[str, object]:
    """Fit and run one config on a table, writing nothing; returns its summary, baselines included."""
    stream = ScoredStream.start(config, rows, progress=progress and sys.stderr.isatty())
    total = None if rows.num_rows is None else rows.num_rows - config.warmup
    with progress_bar(name, total, progress) as bar:
        for chunk in stream.chunks(rows):
            bar.update(chunk.y.shape[0])
    return summarize_run(stream, rows.columns)


def comparison_table(results: Mapping[str, Mapping[str, object]]) -> str:
    """The table to print, the best log score first."""
    return format_table(dict(sorted(results.items(), key=lambda item: -_log_score(item[1]))), _COLUMNS)


def _seeded(name: str, seed: int) -> str:
    return f"{name}, seed {seed}"


def _log_score(summary: Mapping[str, object]) -> float:
    value = summary.get("log_score")
    return value if isinstance(value, float) else -float("inf")
