"""What every expert said about a stream, kept: weight rules are tried on it without running an expert again."""

import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.ensembles.bases import (
    Basis,
    FourierBasis,
    HilbertBasis,
    LinearBasis,
    PolynomialBasis,
    RadialBasis,
)
from gp_ensembles.ensembles.build import (
    FitSettings,
    NamedExpert,
    build_maps,
    condition,
    dynamic_group,
    fitted_experts,
    static_group,
)
from gp_ensembles.files.replacing import replace_file
from gp_ensembles.meta_learners import BayesianModelAveraging
from studies.harness.protocol import Stream

NUM_FEATURES = 100  # of every basis that has a choice, as in the paper
NUM_SAMPLES = 5
WALK = 1e-3
_BLOCK = 512


class Recording(NamedTuple):
    """One-step-ahead predictions of M experts for T targets: M/2 static ones, then their dynamic twins.

    Attributes:
        family: Family of each expert (``hsgp``, ``rff``, ``rbf``, ``poly``, ``linear``), length M.
        is_dynamic: Whether an expert's weights walk, shape (M,).
        sample: Number of the expert's hyperparameter sample, 0 for the optimum, shape (M,).
        mean: Predictive means, standardized, shape (M, T).
        variance: Predictive variances, noise included, shape (M, T).
        log_prob: Log densities of the targets, shape (M, T); NaN where a target is missing.
        y: Targets, standardized, shape (T,); NaN where missing.
        seconds: Seconds spent on fitting and on the stream.
    """

    family: tuple[str, ...]
    is_dynamic: Tensor
    sample: Tensor
    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    y: Tensor
    seconds: tuple[float, float]


def paper_bases(num_inputs: int) -> list[tuple[str, Basis]]:
    """The five families with as many features as in the paper, for inputs of D columns.

    Example:
        >>> [family for family, _ in paper_bases(4)]
        ['hsgp', 'rff', 'rbf', 'poly', 'linear']
    """
    return [
        ("hsgp", HilbertBasis(num_frequencies=max(1, NUM_FEATURES // num_inputs))),
        ("rff", FourierBasis(num_features=NUM_FEATURES)),
        ("rbf", RadialBasis(num_centers=NUM_FEATURES)),
        ("poly", PolynomialBasis()),
        ("linear", LinearBasis()),
    ]


def record(stream: Stream, seed: int, title: str, progress: bool) -> Recording:
    """Fit all families to the warm-up rows, and run static and dynamic experts over the stream.

    Args:
        stream: The stream.
        seed: Seed of frequencies, centers and sampled hyperparameters.
        title: What the progress bar says.
        progress: Show a progress bar.

    Raises:
        NumericalError: If an expert cannot be computed on this stream.
    """
    X, y = stream.warm_X, stream.warm_y
    generator = torch.Generator().manual_seed(seed)
    fit = FitSettings(num_samples=NUM_SAMPLES)
    began = time.perf_counter()
    experts: list[NamedExpert] = []
    family: list[str] = []
    bases = paper_bases(X.shape[1])
    for name, basis in tqdm(bases, desc=f"{title}: fit", unit="family", disable=not progress, leave=False):
        found = fitted_experts(build_maps(X, [basis], generator), X, y, fit, generator, False)
        family += [name] * sum(expert.num_experts for _, expert in found)
        experts += found
    fitted = time.perf_counter()
    online = condition(X, y, [static_group(experts), dynamic_group(experts, X, [WALK])], BayesianModelAveraging())
    parts = []
    with tqdm(total=len(stream.y), desc=title, unit="row", disable=not progress, leave=False) as bar:
        for rows, targets in stream.blocks(_BLOCK):
            parts.append(online.observe(rows, targets).experts)
            bar.update(len(targets))
    seconds = (fitted - began, time.perf_counter() - fitted)
    mean, variance, log_prob = (torch.cat([part[k] for part in parts], dim=1).detach() for k in range(3))
    number = torch.arange(2 * len(family), device=X.device)
    return Recording(
        family=tuple(family * 2),
        is_dynamic=number >= len(family),
        sample=number % NUM_SAMPLES,
        mean=mean,
        variance=variance,
        log_prob=log_prob,
        y=stream.y,
        seconds=seconds,
    )


def save_recording(recording: Recording, path: Path, mark: str) -> None:
    """Write a recording in one step; predictions in single precision.

    Args:
        recording: The recording.
        path: Where; its folder must exist.
        mark: What it was made from; a file with another mark is not read back.

    Raises:
        OSError: If the folder cannot be written.
    """
    arrays = {
        "mark": np.array(mark),
        "family": np.array(recording.family),
        "is_dynamic": recording.is_dynamic.numpy(),
        "sample": recording.sample.numpy(),
        "mean": recording.mean.float().numpy(),
        "variance": recording.variance.float().numpy(),
        "log_prob": recording.log_prob.float().numpy(),
        "y": recording.y.numpy(),
        "seconds": np.array(recording.seconds),
    }
    # The stubs see a flag in every name.
    replace_file(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def load_recording(path: Path, mark: str) -> Recording | None:
    """Read a recording; ``None`` if there is none, it has another mark, or the file is damaged.

    Example:
        >>> load_recording(Path("no such file"), "") is None
        True
    """
    try:
        # Opened here: numpy leaves the file of a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if str(arrays["mark"]) != mark:
                return None
            tensors = {name: torch.from_numpy(arrays[name]) for name in ("is_dynamic", "sample", "y")}
            steps = {name: torch.from_numpy(arrays[name]).double() for name in ("mean", "variance", "log_prob")}
            seconds = arrays["seconds"].tolist()
            return Recording(
                family=tuple(arrays["family"].tolist()), seconds=(seconds[0], seconds[1]), **tensors, **steps
            )
    except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
