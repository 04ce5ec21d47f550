"""How rows are embedded: a frozen record, and the model that it describes."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

import torch

from gp_ensembles.gplvm import IEGPLVM, RBF_VARIANCES, LatentSettings, die_gplvm, dsie_gplvm, ie_gplvm, sie_gplvm

Variant = Literal["static", "switching", "dynamic", "dynamic-switching"]
_LEAST_WARM_UP = 50
_COUNTS = ("num_latent", "num_frequencies", "block_size", "num_starts", "batch_iterations", "capacity", "max_rows")


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
        >>> EmbedOptions().settled(2000, is_array=False).warmup
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

    def settled(self, num_rows: int, is_array: bool) -> "EmbedOptions":
        """The options with the defaults that hang on the rows filled in."""
        warmup = max(_LEAST_WARM_UP, num_rows // 10) if self.warmup is None else self.warmup
        standardize = not is_array if self.standardize is None else self.standardize
        return replace(self, warmup=warmup, standardize=standardize)

    def plain(self) -> dict[str, object]:
        """The options as plain containers."""
        return asdict(self)


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
