"""How rows are embedded: the options, the rows in a model's units, and the model that the options describe."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.embed.rows import Rows, select
from gp_ensembles.gplvm import IEGPLVM, RBF_VARIANCES, LatentSettings, die_gplvm, dsie_gplvm, ie_gplvm, sie_gplvm
from gp_ensembles.streaming.scales import constant_columns

Variant = Literal["static", "switching", "dynamic", "dynamic-switching"]
_LEAST_WARM_UP = 50
_COUNTS = ("num_latent", "num_frequencies", "block_size", "num_starts", "batch_iterations", "capacity", "max_rows")
_NAMED = 5  # columns that a message names


@dataclass(frozen=True)
class EmbedOptions:
    """Options of the command ``embed``.

    Attributes:
        warmup: Rows at the start that are embedded together; a tenth of all rows by default, at least 50.
        num_latent: Dimensions of the embedding.
        num_frequencies: Frequencies of each expert.
        variant: Weights of the experts learned from all rows alike (static), with switches between them (switching),
            with functions that walk at random (dynamic), or both (dynamic-switching).
        stay: Probability of no switch before a row, where weights switch.
        random_walk_ratio: Variance of a step of the functions' weights in units of their prior variance, where they
            walk.
        block_size: Rows embedded at once; more is faster, and each row knows less by the others of its block.
        num_starts: Nearest neighbors from which the place of a row is searched; the paper's algorithm has one.
        batch_iterations: Most iterations of the fit to the warm-up rows.
        capacity: Most rows kept for the search for neighbors, a uniform sample beyond; more than 100 000 need faiss.
        seed: Seed of all randomness.
        device: Where the model runs.
        dtype: Precision of the model.
        standardize: Divide each column by its deviation in the warm-up rows; by default not for array files, whose
            columns share a unit.
        drop_constant: Leave out columns that are constant in the warm-up rows instead of refusing them.
        max_rows: Read so many rows only.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> EmbedOptions().with_defaults(2000, is_array=False).warmup
        200
    """

    warmup: int | None = None
    num_latent: int = 2
    num_frequencies: int = 50
    variant: Variant = "static"
    stay: float = 0.99
    random_walk_ratio: float = 1e-4
    block_size: int = 1
    num_starts: int = 3
    batch_iterations: int = 600
    capacity: int = 20_000
    seed: int = 0
    device: str = "cpu"
    dtype: Literal["float64", "float32"] = "float64"
    standardize: bool | None = None
    drop_constant: bool = False
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.warmup is not None and self.warmup < 10:
            raise ValueError(f"--warmup is {self.warmup}; at least 10 rows are needed to start from")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed must be from 0 to below 2^63, got {self.seed}")
        if not 0 <= self.stay <= 1:
            raise ValueError(f"--stay must be a probability, got {self.stay}")
        if not 0 < self.random_walk_ratio < float("inf"):
            raise ValueError(f"--random_walk_ratio must be positive and finite, got {self.random_walk_ratio}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device itself."""
        return torch.device(self.device)

    def with_defaults(self, num_rows: int, is_array: bool) -> "EmbedOptions":
        """The options with the defaults that depend on the rows filled in."""
        warmup = max(_LEAST_WARM_UP, num_rows // 10) if self.warmup is None else self.warmup
        standardize = not is_array if self.standardize is None else self.standardize
        return replace(self, warmup=warmup, standardize=standardize)


def build_model(options: EmbedOptions, num_outputs: int, num_rows: int) -> IEGPLVM:
    """The model of a run, not started: one expert for each length scale of the preset.

    Args:
        options: The run.
        num_outputs: Entries of a row.
        num_rows: Rows of the run; memory for neighbors is for these, at most the capacity.

    Raises:
        ImportError: If neighbors need faiss, which is not installed.
        ValueError: If there are more latent dimensions than entries.

    Example:
        >>> build_model(EmbedOptions(num_frequencies=10), num_outputs=6, num_rows=100).num_experts
        7
    """
    settings = LatentSettings(
        capacity=min(options.capacity, num_rows),
        seed=options.seed,
        batch_iterations=options.batch_iterations,
        num_starts=options.num_starts,
    )
    presets: dict[Variant, Callable[..., IEGPLVM]] = {
        "static": ie_gplvm,
        "switching": partial(sie_gplvm, stay=options.stay),
        "dynamic": partial(die_gplvm, random_walk_ratio=options.random_walk_ratio),
        "dynamic-switching": partial(dsie_gplvm, stay=options.stay, random_walk_ratio=options.random_walk_ratio),
    }
    model = presets[options.variant](
        num_outputs,
        options.num_latent,
        options.num_frequencies,
        settings=settings,
        generator=torch.Generator().manual_seed(options.seed),
        dtype=options.torch_dtype,
    )
    return model.to(options.torch_device)


def expert_names() -> list[str]:
    """Names of the experts: the length scales of their kernels, in units of the latent prior.

    Example:
        >>> expert_names()[0]
        'length scale 0.354'
    """
    return [f"length scale {square**0.5:.3g}" for square in RBF_VARIANCES]


class Prepared(NamedTuple):
    """Rows in the units of a model.

    Attributes:
        rows: The rows with the columns kept, in units of the data.
        options: The options, defaults filled in.
        offset: What is taken from each column, its mean in the warm-up rows, float64, shape (D,).
        scale: What each column is then divided by, float64, shape (D,).
        present: Rows with a value, of which there are n, boolean, shape (N,).
        Y: These rows in the model's units and dtype, shape (n, D).
        dropped: Names of the columns left out as constant.
    """

    rows: Rows
    options: EmbedOptions
    offset: Tensor
    scale: Tensor
    present: Tensor
    Y: Tensor
    dropped: tuple[str, ...]

    @property
    def warmup(self) -> int:
        """Number of warm-up rows."""
        assert self.options.warmup is not None
        return self.options.warmup


def prepare(rows: Rows, options: EmbedOptions) -> Prepared:
    """Check rows and bring them into a model's units.

    Raises:
        ValueError: If no row follows the warm-up, a warm-up row has a gap, a column is constant in the warm-up rows, a
            number is too large (each is named), or there are more latent dimensions than columns.

    Example:
        >>> Y = torch.arange(40, dtype=torch.float64).reshape(20, 2)
        >>> prepared = prepare(Rows(Y, ("a", "b"), None, "pump", False), EmbedOptions(warmup=10))
        >>> prepared.scale
        tensor([5.7446, 5.7446], dtype=torch.float64)
    """
    options = options.with_defaults(len(rows.Y), rows.is_array)
    warmup = options.warmup
    assert warmup is not None
    if len(rows.Y) <= warmup:
        raise ValueError(
            f"{rows.name} has {len(rows.Y)} rows and the first {warmup} are the warm-up; at least one row must follow, "
            f"so choose a smaller --warmup"
        )
    _check_complete(rows, warmup)
    rows, dropped = _without_constant(rows, warmup, options.drop_constant)
    if options.num_latent > rows.Y.shape[1]:
        raise ValueError(
            f"--num_latent {options.num_latent} is more than the {rows.Y.shape[1]} column(s) to embed; choose fewer"
        )
    first = rows.Y[:warmup]
    scale = first.std(0, correction=0) if options.standardize else rows.Y.new_ones(rows.Y.shape[1])
    if not bool(first.std(0, correction=0).isfinite().all()):
        column = int(first.std(0, correction=0).isfinite().int().argmin())
        raise ValueError(f"the spread of column {rows.names[column]} overflows in the warm-up rows; rescale its values")
    offset = first.mean(0)
    scaled = ((rows.Y - offset) / scale).to(options.torch_dtype)  # in that order: a large offset would eat the digits
    # Squares are summed over columns; a number whose square is out of range would show up as an error far from here.
    wild = scaled.abs() > (torch.finfo(scaled.dtype).max / 2**20) ** 0.5
    if bool(wild.any()):
        row, column = wild.nonzero()[0].tolist()
        raise ValueError(
            f"{rows.where(row, column)}: {float(rows.Y[row, column]):.6g} is too large for {options.dtype}; correct "
            f"it, or leave the cell empty"
        )
    present = ~torch.isnan(rows.Y).all(-1)
    return Prepared(rows, options, offset, scale, present, scaled[present], dropped)


def _check_complete(rows: Rows, warmup: int) -> None:
    missing = torch.isnan(rows.Y[:warmup])
    if bool(missing.any()):
        row, column = missing.nonzero()[0].tolist()
        empty = missing.all(0)
        if bool(empty.any()):
            raise ValueError(
                f"the column {rows.names[int(empty.int().argmax())]} has no value in the first {warmup} rows, from "
                f"which the model starts; leave it out with --features, or choose a longer --warmup"
            )
        raise ValueError(
            f"{rows.where(row, column)}: no value, and the first {warmup} rows, from which the model starts, must be "
            f"complete; fill it in, leave the row or the column out, or choose a smaller --warmup (gaps in later rows "
            f"are fine)"
        )


def _without_constant(rows: Rows, warmup: int, drop: bool) -> tuple[Rows, tuple[str, ...]]:
    constant = constant_columns(rows.Y[:warmup])
    if not constant:
        return rows, ()
    names = tuple(rows.names[column] for column in constant)
    if len(constant) == len(rows.names):
        raise ValueError(f"all columns are constant in the {warmup} warm-up rows; choose a larger --warmup")
    if not drop:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise ValueError(
            f"constant in the {warmup} warm-up rows: {', '.join(names[:_NAMED])}{more}; leave them out with "
            f"--drop-constant, or use a longer --warmup"
        )
    kept = [column for column in range(len(rows.names)) if column not in set(constant)]
    return select(rows, kept), names
