"""The pipeline around an ensemble whose experts lie on several processes: rows in their own units, warm-up, files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.distributed.ensemble import DistributedEnsemble
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.files.operations import make_folder, remove_folder, remove_if_possible
from gp_ensembles.streaming.after_mixture import calibrate_block, in_units
from gp_ensembles.streaming.building import build
from gp_ensembles.streaming.checks import check_input_shape, checked_targets
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.content import Parts, content_of, parts_of
from gp_ensembles.streaming.inputs import InputPath
from gp_ensembles.streaming.model import OnlineModel
from gp_ensembles.streaming.predictions import OnlinePredictions

HEAD = "model.pt"
_PART = re.compile(r"\d+(?:-(\d+))?")  # files of earlier versions have no number
_KIND = Kind("gp_ensembles distributed model", 1, "a distributed model", "give a folder that one was saved in")


@final
class DistributedModel:
    """An ensemble on a stream of rows in their own units, its experts over the processes of ``torch.distributed``.

    What :class:`~gp_ensembles.streaming.OnlineModel` does, with the same bits on any number of processes, for targets
    that are single real numbers. Every process is given the same rows and fits all hyperparameters, then keeps the
    states of its share of the experts. Missing inputs are filled, but add no noise, and all rows are one step apart.

    Args:
        config: The ensemble, and how rows are given to it.
        X: Warm-up inputs, in their units, shape (N, D); NaN where missing.
        y: Warm-up targets, shape (N,); NaN where missing.
        feature_names: Names of the inputs, for messages.
        progress: Show a progress bar.

    Raises:
        ValueError: As :meth:`OnlineModel.fit`, or if there are more processes than pieces of experts.
        TypeError: If an expert cannot lie on several processes.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y = 100 + 5 * X.squeeze(-1)
        >>> model = DistributedModel(StreamConfig(replace(oebe, bases=(LinearBasis(),))), X[:20], y[:20])
        >>> bool((model.observe(X[20:], y[20:]).mean - y[20:]).abs().max() < 0.1)
        True
    """

    config: StreamConfig
    feature_names: tuple[str, ...]
    ensemble: DistributedEnsemble
    _parts: Parts
    _path: InputPath

    def __init__(
        self,
        config: StreamConfig,
        X: Tensor,
        y: Tensor,
        feature_names: Sequence[str] | None = None,
        *,
        progress: bool = False,
    ) -> None:
        _check_target(config)
        fitted = OnlineModel(config, feature_names).fit(X, y, progress=progress)
        online = fitted.online
        assert online is not None
        self._begin(fitted.config, fitted.feature_names, fitted.parts()._replace(online=None))
        self.ensemble = DistributedEnsemble(online.ensemble, state=online.state, block_size=online.block_size)

    @property
    def num_rows(self) -> int:
        """Rows learned, warm-up included."""
        return self._parts.num_rows

    def observe(self, X: Tensor, y: Tensor) -> OnlinePredictions:
        """Predict each target, then learn it; a rejected call changes nothing on any process.

        Args:
            X: Inputs in the order of time, in their units, shape (N, D); NaN where missing.
            y: Targets, shape (N,); NaN where missing.

        Raises:
            ValueError: As :meth:`OnlineModel.observe`.
            NumericalError: If an expert fails, on any process.
            RankLostError: If another process is not there any more.
        """
        path, parts = self._path, self._parts
        check_input_shape(X, len(self.feature_names))
        X = X.detach().to(self.config.torch_device, torch.float64)
        y = checked_targets(y, X, None)
        assert parts.inputs is not None
        standard = path.follow(parts.inputs, X, self.num_rows + 1)
        wrong = path.illegal(standard, X, y)
        if wrong is not None:
            raise ValueError(wrong.message(self.num_rows + 1, self.feature_names))
        followed, inputs = standard.state, standard.inputs
        if followed.within is not None:
            within, inputs, _ = followed.within.follow(inputs)
            followed = followed._replace(within=within)
        scales, targets = path.columns.scales, path.targets(y)
        said = self.ensemble.observe(path.with_forecasts(inputs, X), targets.to(self.config.torch_dtype))
        mixture = in_units(said.mixture, scales)
        calibration, block = calibrate_block(parts.calibration, self.config, mixture, y, self.ensemble.block_size)
        num_rows = parts.num_rows + len(y)
        self._parts = parts._replace(inputs=followed, calibration=calibration, num_rows=num_rows)
        log_prob = said.log_prob.double() - scales.log_scale(targets) + block.gain
        return OnlinePredictions(block.distribution, log_prob, said.log_weights.double(), 0, block.intervals)

    def save(self, folder: str | Path, notes: Mapping[str, Any] | None = None) -> None:
        """Write everything into a folder, to which all processes write; a save that fails leaves the one before.

        Args:
            folder: Where; made if it is not there.
            notes: Plain containers to be kept with it, see :meth:`notes_in`; those of the first process are.

        Raises:
            OSError: If a file cannot be written.
            RankLostError: If another process is not there any more.
        """
        folder = Path(folder)
        make_folder(folder)
        at = f"{self.num_rows}-{self.ensemble.ranks.agreed(_next_number(folder))}"
        self.ensemble.save(folder / at)
        if self.ensemble.ranks.rank == 0:
            about = {"config": self.config.to_plain(), "feature_names": list(self.feature_names)}
            size = self.ensemble.block_size
            content = {**about, **content_of(self._parts), "block_size": size, "at": at, "notes": dict(notes or {})}
            write_checkpoint(folder / HEAD, _KIND, content)
            for other in folder.iterdir():
                if _PART.fullmatch(other.name) and other.name != at:
                    for path in other.iterdir():
                        remove_if_possible(path)
                    remove_folder(other)
        self.ensemble.ranks.wait()

    @classmethod
    def load(cls, folder: str | Path) -> "DistributedModel":
        """Go on from a folder that any number of processes wrote, to the bit.

        Raises:
            FileNotFoundError: If there is no such model in the folder.
            OSError: If a file cannot be read.
            ValueError: If a file is damaged.
        """
        content = _read(Path(folder))
        config = StreamConfig.from_plain(content["config"])
        model = cls.__new__(cls)
        model._begin(config, content["feature_names"], parts_of(content, config.torch_device))
        X, y = model._parts.warm_X, model._parts.warm_y
        assert X is not None
        assert y is not None
        online = build(config, model._path, X, y, is_fitted=False)
        model.ensemble = DistributedEnsemble(online.ensemble, block_size=content["block_size"])
        model.ensemble.load(Path(folder) / str(content["at"]))
        return model

    @staticmethod
    def notes_in(folder: str | Path) -> dict[str, Any]:
        """What was kept with a model that was saved in a folder; raises as :meth:`load`."""
        notes: dict[str, Any] = _read(Path(folder))["notes"]
        return notes

    def _begin(self, config: StreamConfig, feature_names: Sequence[str] | None, parts: Parts) -> None:
        X, y = parts.warm_X, parts.warm_y
        assert X is not None
        assert y is not None
        names = [f"column {number}" for number in range(X.shape[1])] if feature_names is None else feature_names
        self.config, self.feature_names, self._parts = config, tuple(names), parts
        self._path = InputPath.of(config, X, y, self.feature_names)


def _check_target(config: StreamConfig) -> None:
    target = config.ensemble.target
    if not target.is_real or target.num_outputs is not None:
        raise ValueError(f"experts on several processes predict single real numbers, got {target!r}")


def _next_number(folder: Path) -> int:
    """Which of the saves into a folder comes: none writes over the states of another one."""
    numbers = [int(found[1]) for path in folder.iterdir() if (found := _PART.fullmatch(path.name)) and found[1]]
    return 1 + max(numbers, default=0)


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / HEAD).exists():
        raise FileNotFoundError(f"{folder} holds no distributed model: there is no {HEAD} in it; {_KIND.advice}")
    return read_checkpoint(folder / HEAD, _KIND)
