"""Settings of a model on a stream: one frozen record."""

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch

from gp_ensembles.calibration.levels import check_coverages
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.records import spec_to_plain
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.spec_checks import check_flag
from gp_ensembles.numerics.arguments import check_device, check_made
from gp_ensembles.numerics.display import changed, spread_text

Impute = Literal["found", "last", "mean"]
OnBadRow = Literal["missing", "skip", "limit", "refuse"]
MIN_WARM_UP = 10  # targets without which nothing is fitted


@dataclass(frozen=True)
class StreamConfig:
    """An ensemble, and how a stream is given to it.

    Attributes:
        ensemble: What the ensemble is made of.
        warmup: Rows at the start from which scales and hyperparameters come; predictions begin after them.
        seed: Seed of all randomness.
        device: Where the ensemble runs, for instance ``cpu`` or ``cuda``.
        dtype: Precision of the ensemble; scales and predictions are always in float64.
        block_size: Rows learned at once; chosen from the sizes by default. It changes speed only.
        impute: What a missing input is imputed by: the column's ``last`` value, its ``mean``, or what was ``found``
            between these on the warm-up rows, see :mod:`~gp_ensembles.streaming.input_states`.
        clip: Inputs are clipped at this many warm-up standard deviations from the warm-up mean; not by default.
        limit_inputs: Move inputs far beyond the range seen so far to where they do no lasting harm, and outliers of the
            warm-up to the edge of the other values, see :mod:`~gp_ensembles.streaming.input_states`.
        recalibrate: Correct the mixture's distribution function by its past errors, for a single output of real
            numbers; likewise the probabilities of classes, with the help of the latest labels. Levels and counts are
            not recalibrated.
        coverages: Target coverages of adaptive intervals, for a single output of real numbers; with none, and where
            targets have a point mass, intervals are those of the distribution.
        on_bad_row: What becomes of a number that is infinite or more than 1e6 warm-up standard deviations from the
            warm-up mean, such as an overflow code: it counts as ``missing``, its row teaches nothing (``skip``), an
            input is moved to the edge of the range that inputs may have by now (``limit``; a target counts as missing),
            or the call is refused (``refuse``). Rows are counted in ``OnlineModel.anomaly_counts``.

    Raises:
        TypeError: If ``ensemble`` is not a record, or a number is of another type.
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
    impute: Impute = "found"
    clip: float | None = None
    limit_inputs: bool = True
    recalibrate: bool = True
    coverages: tuple[float, ...] = (0.9,)
    on_bad_row: OnBadRow = "missing"

    def __repr__(self) -> str:
        ensemble = " ".join(repr(self.ensemble).split()).replace("( ", "(").replace(", )", ")")
        others = [text for name, text in changed(self).items() if name != "ensemble"]
        return spread_text("StreamConfig", [ensemble, *others])

    def __post_init__(self) -> None:
        check_made("ensemble", self.ensemble, EnsembleSpec, "gpe.auto or gpe.e_doebe")
        for name in ("warmup", "seed", "block_size"):
            self._set(name, Integral, int, "a whole number")
        self._set("clip", Real, float, "a number")
        for name in ("limit_inputs", "recalibrate"):
            check_flag(self, name, getattr(self, name))
        check_coverages(self.coverages)
        object.__setattr__(self, "coverages", tuple(float(share) for share in self.coverages))
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype must be 'float64' or 'float32', got {self.dtype!r}")
        if self.warmup < MIN_WARM_UP:
            raise ValueError(f"warmup is {self.warmup}; at least {MIN_WARM_UP} rows are needed to fit a model")
        if self.impute not in ("found", "last", "mean"):
            raise ValueError(f"impute must be 'found', 'last' or 'mean', got {self.impute!r}")
        if self.on_bad_row not in get_args(OnBadRow):
            raise ValueError(f"on_bad_row must be 'missing', 'skip', 'limit' or 'refuse', got {self.on_bad_row!r}")
        if self.on_bad_row == "limit" and not self.limit_inputs:
            raise ValueError("on_bad_row='limit' moves inputs into the range so far, which needs limit_inputs=True")
        if self.seed < 0:
            raise ValueError(f"seed must be zero or positive, got {self.seed}")
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2^63, got {self.seed}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}")
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be positive, got {self.block_size}")

    def _set(self, name: str, kind: type, plain: type, what: str) -> None:
        """Convert a number to Python's, which every file can hold."""
        value = getattr(self, name)
        if value is None and name in ("block_size", "clip"):
            return
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{name} must be {what}, got {value!r}")
        object.__setattr__(self, name, plain(value))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device itself.

        Raises:
            ValueError: If it is unknown or absent.
        """
        return check_device(self.device)

    def to_plain(self) -> dict[str, Any]:
        """Plain containers: the content of a YAML file.

        Example:
            >>> StreamConfig().to_plain()["warmup"]
            1000
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "ensemble": spec_to_plain(self.ensemble), "coverages": list(self.coverages)}
