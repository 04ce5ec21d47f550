"""What a run is: a frozen record, read from YAML, written into checkpoints as plain containers."""

from argparse import ArgumentError
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.named_configs import refuse_repeated_keys
from gp_ensembles.cli.sentences import one_sentence
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.records import spec_from_plain, spec_to_plain
from gp_ensembles.ensembles.spec import EnsembleSpec


@dataclass(frozen=True)
class StreamConfig:
    """A model, and how a stream is given to it.

    Attributes:
        ensemble: What the ensemble is made of.
        warmup: Rows at the start from which statistics and hyperparameters come; predictions begin after them.
        seed: Seed of all randomness.
        device: Where the ensemble runs, for instance ``cpu`` or ``cuda``.
        dtype: Precision of the ensemble; scores are always computed in float64.
        block_size: Rows learned at once; chosen from the sizes by default. It changes speed only.
        drop_constant: Leave out input columns that are constant in the warm-up instead of refusing them.
        clip: Inputs are clipped at so many warm-up deviations from the warm-up mean; not at all by default.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> StreamConfig(warmup=200).ensemble.name
        'auto'
    """

    ensemble: EnsembleSpec = auto
    warmup: int = 1000
    seed: int = 0
    device: str = "cpu"
    dtype: Literal["float64", "float32"] = "float64"
    block_size: int | None = None
    drop_constant: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.warmup < 10:
            raise ValueError(f"warmup is {self.warmup}; at least 10 rows are needed to fit a model")
        if self.seed < 0:
            raise ValueError(f"seed must be zero or positive, got {self.seed}")
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2^63, got {self.seed}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}")
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be positive, got {self.block_size}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device itself."""
        return torch.device(self.device)

    def check_device(self) -> None:
        """Raise unless the device is there.

        Raises:
            ValueError: If it is unknown or absent.
        """
        check_device(self.device)


def check_device(name: str) -> None:
    """Raise unless a device is there.

    Raises:
        ValueError: If it is unknown or absent.

    Example:
        >>> check_device("gpu")
        Traceback (most recent call last):
        ValueError: device 'gpu' is unknown; use cpu, cuda or cuda:0
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown; use cpu, cuda or cuda:0") from None
    if device.type == "cpu" and device.index is not None:
        raise ValueError(f"device {name!r} is unknown; there is one cpu, so use cpu and --num-threads")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} was asked for, but torch sees no such GPU; use --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use cpu or cuda")


def config_parser() -> ArgumentParser:
    """A parser whose keys are the fields of :class:`StreamConfig`; it raises instead of leaving the program."""
    parser = ArgumentParser(exit_on_error=False)
    add_config(parser)
    return parser


def add_config(parser: ArgumentParser) -> None:
    """Give a parser the fields of :class:`StreamConfig`, none of them required."""
    start = StreamConfig()
    add = parser.add_argument
    add("--ensemble", type=str | dict | None, default=None, help="a preset's name or, in a file, settings; auto")
    add("--warmup", type=int, default=start.warmup, help="rows to fit to; predictions begin after them")
    add("--seed", type=int, default=start.seed, help="seed of all randomness")
    add("--device", type=str, default=start.device, help="where the ensemble runs: cpu, cuda, cuda:1")
    dtypes = Literal["float64", "float32"]
    add("--dtype", type=dtypes, default=start.dtype, help="precision of the ensemble; scores are in float64")
    add("--block_size", type=int | None, default=None, help="rows learned at once, chosen from the sizes by default")
    add("--drop_constant", type=bool, default=False, help="leave out inputs that are constant in the warm-up")
    add("--clip", type=float | None, default=None, help="clip inputs at so many warm-up deviations from their mean")


def load_config(path: str | Path) -> StreamConfig:
    r"""Read a config from a YAML file; an unknown key is an error.

    Args:
        path: The file.

    Returns:
        The config.

    Raises:
        ValueError: If a key is unknown, a key stands twice, a value has the wrong type, or the file is empty.
        OSError: If the file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "small.yaml"
        ...     _ = file.write_text("warmup: 50\nensemble: {like: oebe, bases: [LinearBasis]}")
        ...     config = load_config(file)
        >>> config.warmup, config.ensemble.name
        (50, 'oebe')
    """
    parser = config_parser()
    refuse_repeated_keys(path)
    text = Path(path).read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{path} is empty; a config has keys such as ensemble and warmup")
    try:
        return config_from(parser.parse_string(text))
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"{path}: {one_sentence(error)}") from error


def to_plain(config: StreamConfig) -> dict[str, Any]:
    """A config as plain containers, which :func:`from_plain` reads back; also what a YAML file would hold.

    Example:
        >>> to_plain(StreamConfig())["warmup"]
        1000
    """
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    return {**plain, "ensemble": spec_to_plain(config.ensemble)}


def from_plain(plain: Mapping[str, object]) -> StreamConfig:
    """The record that :func:`to_plain` wrote.

    Example:
        >>> from_plain(to_plain(StreamConfig(seed=3))).seed
        3
    """
    return config_from(config_parser().parse_object(dict(plain)))


def config_from(values: Namespace) -> StreamConfig:
    """The record among the parsed values of a parser that has its fields."""
    given = {field.name: values[field.name] for field in fields(StreamConfig)}
    ensemble = given.pop("ensemble")
    return StreamConfig(auto if ensemble is None else spec_from_plain(ensemble), **given)
