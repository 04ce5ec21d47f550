"""Configs of runs, read from YAML or from options of the command line."""

from argparse import ArgumentError
from dataclasses import fields
from pathlib import Path
from typing import Literal

import yaml
from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.named_configs import refuse_odd_yaml
from gp_ensembles.cli.running import one_sentence
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.records import spec_from_plain
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.config import Impute, OnBadRow

_WARM_UP = "warm-up rows, to which the model is fitted; 1000 by default, or a third of a table shorter than 3000"
_BAD_ROW = "implausibly large numbers, such as 1e300: treat as missing, skip their rows, limit inputs, or refuse them"
# What PyYAML raises for values such as "!!int" besides its own errors.
_ODD_YAML = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_UNREADABLE = "it contains a value or key that cannot be parsed as YAML; quote text, and remove tags (!!)"


def add_config(parser: ArgumentParser) -> None:
    """Add the fields of :class:`StreamConfig` to a parser, none of them required."""
    start = StreamConfig()
    add = parser.add_argument
    add("--ensemble", type=str | dict | None, default=None, help="preset or, in a file, settings; auto by default")
    add("--warmup", type=int, default=None, help=_WARM_UP)
    add("--seed", type=int, default=start.seed, help="random seed")
    add("--device", type=str, default=start.device, help="device of the ensemble: cpu, cuda, cuda:1")
    dtypes = Literal["float64", "float32"]
    add("--dtype", type=dtypes, default=start.dtype, help="precision of the ensemble; scores are computed in float64")
    add("--block_size", type=int | None, default=None, help="rows learned at once; by default chosen by size")
    add("--impute", type=Impute, default=start.impute, help="how missing inputs are imputed")
    add("--clip", type=float | None, default=None, help="clip inputs at this many warm-up standard deviations")
    add("--limit_inputs", type=bool, default=start.limit_inputs, help="clip inputs far outside the range seen so far")
    add("--recalibrate", type=bool, default=start.recalibrate, help="recalibrate predictions on past errors")
    add("--coverages", type=list[float], default=list(start.coverages), help="coverages of intervals; [] for none")
    add("--on_bad_row", type=OnBadRow, default=start.on_bad_row, help=_BAD_ROW)


def load_config(path: str | Path) -> StreamConfig:
    """Read a config from a YAML file; an unknown key is an error."""
    return _parsed(path)[0]


def warmup_in(path: str | Path) -> int | None:
    """The warm-up that a config names; ``None`` where it leaves it to the table."""
    return _parsed(path)[1]


def _parsed(path: str | Path) -> tuple[StreamConfig, int | None]:
    parser = ArgumentParser(exit_on_error=False)  # it raises instead of exiting
    add_config(parser)
    refuse_odd_yaml(path)
    text = Path(path).read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{path} is empty; a config has keys such as ensemble and warmup")
    _refuse_misplaced(path, text)
    try:
        values = parser.parse_string(text)
        return config_from(values), values.warmup
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"{path}: {one_sentence(error)}") from error
    except _ODD_YAML as error:
        raise ValueError(f"{path}: {_UNREADABLE}") from error


def _refuse_misplaced(path: str | Path, text: str) -> None:
    """Raise if a setting of the ensemble is not under ``ensemble``; invalid YAML is left to the parser."""
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    except (ValueError, *_ODD_YAML) as error:
        raise ValueError(f"{path}: {_UNREADABLE}") from error
    known = ("like", "add_experts", *(field.name for field in fields(EnsembleSpec)))
    for key in plain if isinstance(plain, dict) else ():
        if key in known:
            column = " (the column to predict is given by --target)" if key == "target" else ""
            raise ValueError(
                f"{path}: {key} is a setting of the ensemble and belongs under it, as in {{ensemble: {{like: auto, "
                f"{key}: ...}}}}{column}"
            )


def config_from(values: Namespace) -> StreamConfig:
    """The record among the parsed values of a parser that has its fields."""
    given = {field.name: values[field.name] for field in fields(StreamConfig)}
    ensemble = given.pop("ensemble")
    if given["warmup"] is None:
        del given["warmup"]
    return StreamConfig(auto if ensemble is None else spec_from_plain(ensemble), **given)
