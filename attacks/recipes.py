"""Small checkpoints of each kind, with numbers that are predicted from them."""

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.cli.line_session import LineSession, read_line
from gp_ensembles.cli.scored_stream import ScoredStream, load_checkpoint, save_checkpoint
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.papers.fusion.fitted import FittedFusion, fit_fusion
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.inference import MAP
from gp_ensembles.papers.fusion.models import PoGPE
from gp_ensembles.papers.quadrature import Budget, Hyperprior, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal, inferred
from gp_ensembles.papers.quadrature.result import Marginalization
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.tables import open_rows

CONFIG = StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=20)


class Recipe(NamedTuple):
    """A function that writes a small file, and one that reads it and predicts numbers from it."""

    write: Callable[[Path], object]
    numbers: Callable[[Path], list[float]]


def _wave() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.arange(60, dtype=torch.float64).unsqueeze(-1) / 7
    return X, 100 + 5 * X.squeeze(-1) + torch.sin(3 * X.squeeze(-1))


def _write_model(path: Path) -> None:
    model = OnlineModel(CONFIG)
    model.observe(*_wave())
    model.save(path)


def _of_model(model: OnlineModel) -> list[float]:
    X, y = _wave()
    reported = model.predict(X[-3:])
    after = model.observe(X[:5], y[:5])
    return [*reported.mean.tolist(), *reported.variance.tolist(), *after.mean.tolist(), *after.log_prob.tolist()]


def _write_stream(path: Path) -> None:
    rows = open_rows([{"time": k, "height": (k / 7) ** 2} for k in range(60)], "height", num_warm_up=20)
    save_checkpoint(ScoredStream.start(CONFIG, rows), path)


def _of_stream(path: Path) -> list[float]:
    stream = load_checkpoint(path)
    return [stream.num_read, *_of_model(stream.model)]


def _line(k: int, has_target: bool) -> str:
    return json.dumps({"id": k, "wind": k % 7} | ({"load": 2 * (k % 7) + (k % 3)} if has_target else {}))


def _write_lines(path: Path) -> None:
    session = LineSession(CONFIG, "load")
    for k in range(25):
        session.take(read_line(_line(k, True), "load", "id"))
    session.take(read_line(_line(25, False), "load", "id"))
    session.save(path)


def _of_lines(path: Path) -> list[float]:
    session = LineSession.load(path)
    session.take(read_line('{"id": 25, "load": 9}', "load", "id"))
    answer = session.take(read_line(_line(26, False), "load", "id"))
    assert answer is not None
    return [answer[name] for name in ("row", "mean", "std", "q05", "q95")]


def _marginalized(path: Path) -> Marginalization:
    X = torch.linspace(0.0, 6.0, 12, dtype=torch.float64).unsqueeze(-1)
    one = torch.ones(1, dtype=torch.float64)
    prior = Hyperprior(HalfNormal(0.6 * one), LogNormal(-one, 0.5 * one), 2, noise=inferred(1e-2, 1.0))
    search = Search(PriorPolicy(), num_ascents=0, use_periodogram=False)
    problem = RegressionProblem(X, X.squeeze(-1).sin(), prior)
    return marginalize(problem, Budget(8, draws=0), search, generator=torch.Generator().manual_seed(0), checkpoint=path)


def _of_marginalization(path: Path) -> list[float]:
    before = path.read_bytes()
    found = _marginalized(path)  # nothing is left to evaluate
    path.write_bytes(before)
    return [found.log_evidence, *found.state.evaluations.log_likelihood.tolist()]


def _fusion_model() -> tuple[torch.Tensor, PoGPE]:
    X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
    prior = FourierPrior(torch.ones_like(X[:2]))
    return X, PoGPE(X, (2 * X).sin().squeeze(-1), 2, prior, prior, prior)


def _write_fusion(path: Path) -> None:
    fit_fusion(_fusion_model()[1], MAP(), generator=torch.Generator().manual_seed(0)).save(path)


def _of_fusion(path: Path) -> list[float]:
    X, model = _fusion_model()
    reported = FittedFusion.load(path, model).predict(X[:3])
    return [*reported.mean.tolist(), *reported.variance.tolist()]


RECIPES = {
    "model": Recipe(_write_model, lambda path: _of_model(OnlineModel.load(path))),
    "stream": Recipe(_write_stream, _of_stream),
    "lines": Recipe(_write_lines, _of_lines),
    "marginalization": Recipe(_marginalized, _of_marginalization),
    "fusion": Recipe(_write_fusion, _of_fusion),
}


class Sample(NamedTuple):
    """The bytes of a small file, and the numbers that are predicted from it."""

    data: bytes
    numbers: list[float]


@functools.cache
def sample(kind: str) -> Sample:
    """A file of a kind, written once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.pt"
        RECIPES[kind].write(path)
        data = path.read_bytes()
        return Sample(data, RECIPES[kind].numbers(path))
