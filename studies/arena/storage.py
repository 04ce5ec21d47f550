"""Files of a finished part: scores of every row, and every expert's prediction of our ensembles, as numpy archives."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.files.replacing import replace_file
from studies.arena.scores import Array, ClassRows, LocationScale, Rows

Values = NDArray[Any]


class ExpertDensities(NamedTuple):
    """One-step-ahead predictions of M experts for N targets, and the weights before each of them.

    Rules that weigh experts can be compared on these without running an expert again. They are what stands before any
    recalibration.

    Attributes:
        mean: Means, standardized, shape (M, N).
        variance: Variances, noise included, shape (M, N).
        df: Degrees of freedom of Student's t, above 2, shape (M, N); infinite for normal predictions.
        log_weights: Log weights, shape (M, N).
        names: Names of the experts, length M.
        y: Targets, standardized, shape (N,); NaN where missing.
    """

    mean: Array
    variance: Array
    df: Array
    log_weights: Array
    names: tuple[str, ...]
    y: Array

    @property
    def log_prob(self) -> Array:
        """Log densities of the targets, which rules learn from, shape (M, N); NaN where a target is missing."""
        scale = np.sqrt(self.variance * np.where(np.isinf(self.df), 1.0, 1 - 2 / self.df))
        return LocationScale(self.mean, scale, self.df).log_prob(self.y)


def save_arrays(path: Path, arrays: Mapping[str, Values]) -> None:
    """Write arrays in one step: a reader finds the old file or the new one, never half of one.

    Raises:
        OSError: If the folder cannot be written.
    """
    # The stubs see a flag in every name.
    replace_file(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def save_rows(path: Path, rows: Rows | ClassRows) -> None:
    """Write the scores of all rows in one step; all but targets in single precision."""
    save_arrays(path, {name: part if name == "y" else part.astype(np.float32) for name, part in rows._asdict().items()})


def load_rows(path: Path) -> Rows | ClassRows:
    """Read the scores of all rows.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds something else, or is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "rows.npz"
        >>> save_rows(path, ClassRows(np.ones(2), np.zeros(2), np.zeros(2)))
        >>> load_rows(path).y
        array([1., 1.])
    """
    arrays = _read(path)
    for kind in (Rows, ClassRows):
        if set(arrays) == set(kind._fields):
            return kind(**{name: values.astype(np.float64) for name, values in arrays.items()})
    raise ValueError(f"{path} holds {', '.join(arrays)}, not scores of rows; delete it and run its part again")


def save_densities(path: Path, densities: ExpertDensities) -> None:
    """Write experts' predictions in one step; all but targets in single precision."""
    arrays = {name: getattr(densities, name).astype(np.float32) for name in ("mean", "variance", "df", "log_weights")}
    save_arrays(path, {**arrays, "names": np.array(densities.names), "y": densities.y})


def load_densities(path: Path) -> ExpertDensities:
    """Read experts' predictions, in double precision.

    Raises:
        FileNotFoundError: If there is no such file; run the arena with ``--experts true``.
        ValueError: If it holds something else, or is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "experts.npz"
        >>> two = np.zeros((2, 3))
        >>> save_densities(path, ExpertDensities(two, two + 1, two + np.inf, two - np.log(2), ("a", "b"), np.zeros(3)))
        >>> load_densities(path).log_prob.shape, load_densities(path).names
        ((2, 3), ('a', 'b'))
    """
    arrays = _read(path)
    if set(arrays) != set(ExpertDensities._fields):
        raise ValueError(f"{path} holds {', '.join(arrays)}, not predictions of experts; run its part again")
    names = tuple(str(name) for name in arrays.pop("names"))
    return ExpertDensities(**{name: values.astype(np.float64) for name, values in arrays.items()}, names=names)


def _read(path: Path) -> dict[str, Values]:
    try:
        # Opened here: numpy leaves the file of a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and run its part again") from None
