"""Recorded predictions of every expert on a stream: weight rules are tried on them without running an expert again."""

import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.build import NamedExpert, assemble, conditioned, dynamic_group, static_group
from gp_ensembles.files.replacing import replace_file
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging
from studies.doebe.design import Design, family_experts
from studies.harness.protocol import Stream

WALK = 1e-3
_BLOCK = 512


class Recording(NamedTuple):
    """One-step-ahead predictions of M experts for T targets: M/2 static ones, then their dynamic twins.

    Attributes:
        family: Family of each expert, see :data:`~studies.doebe.design.TITLES`, length M.
        start: Number of the starting hyperparameters in the family, shape (M,).
        is_dynamic: Whether an expert's weights walk, shape (M,).
        sample: Number of the expert's hyperparameter sample, 0 for the optimum, shape (M,).
        mean: Predictive means, standardized, shape (M, T).
        variance: Predictive variances, noise included, shape (M, T).
        log_prob: Log densities of the targets, shape (M, T); NaN where a target is missing.
        y: Targets, standardized, shape (T,); NaN where missing.
        seconds: Seconds spent on fitting and on the stream.
    """

    family: tuple[str, ...]
    start: Tensor
    is_dynamic: Tensor
    sample: Tensor
    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    y: Tensor
    seconds: tuple[float, float]


def record(stream: Stream, design: Design, seed: int, title: str, progress: bool) -> Recording:
    """Fit all families to the warm-up rows, and run static and dynamic experts over the stream.

    Args:
        stream: The stream.
        design: The experts.
        seed: Seed of frequencies, centers and sampled hyperparameters.
        title: What the progress bar says.
        progress: Show a progress bar.

    Raises:
        NumericalError: If an expert cannot be computed on this stream.
    """
    generator = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    experts: list[NamedExpert] = []
    family: list[str] = []
    start: list[int] = []
    for name in tqdm(design.families, desc=f"{title}: fit", unit="family", disable=not progress, leave=False):
        found = family_experts(name, stream, design, generator)
        number = sum(expert.num_experts for _, expert in found)
        family += [name] * number
        start += [place // design.num_samples for place in range(number)]
        experts += found
    fitted = time.perf_counter()
    online = _online(stream, experts, design)
    parts = []
    with tqdm(total=len(stream.y), desc=title, unit="row", disable=not progress, leave=False) as bar:
        for rows, targets in stream.blocks(_BLOCK):
            parts.append(online.observe(rows, targets).experts)
            bar.update(len(targets))
    seconds = (fitted - began, time.perf_counter() - fitted)
    mean, variance, log_prob = (torch.cat([part[k] for part in parts], dim=1).detach() for k in range(3))
    number_of = torch.arange(2 * len(family), device=mean.device)
    return Recording(
        family=tuple(family * 2),
        start=torch.tensor(start * 2, dtype=torch.int64, device=mean.device),
        is_dynamic=number_of >= len(family),
        sample=number_of % design.num_samples,
        mean=mean,
        variance=variance,
        log_prob=log_prob,
        y=stream.y,
        seconds=seconds,
    )


def _online(stream: Stream, experts: list[NamedExpert], design: Design) -> OnlineEnsemble:
    """Static experts and their walking twins, conditioned on the warm-up rows or not."""
    X, making = stream.warm_X, design.making
    if making.scaled_walk:
        walking = dynamic_group(experts, X, [WALK])
    else:
        walking = [(f"{name}/dynamic", expert.with_transition(RandomWalk(WALK))) for name, expert in experts]
    groups = [static_group(experts), walking]
    if making.conditioned:
        return conditioned(assemble(groups, BayesianModelAveraging()), X, stream.warm_y)[0]
    return OnlineEnsemble(assemble(groups, BayesianModelAveraging()))


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
        "start": recording.start.numpy(),
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
            tensors = {name: torch.from_numpy(arrays[name]) for name in ("start", "is_dynamic", "sample", "y")}
            steps = {name: torch.from_numpy(arrays[name]).double() for name in ("mean", "variance", "log_prob")}
            seconds = arrays["seconds"].tolist()
            return Recording(
                family=tuple(arrays["family"].tolist()), seconds=(seconds[0], seconds[1]), **tensors, **steps
            )
    except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
