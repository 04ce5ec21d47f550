"""Arrays that the freeze writes of the papers' tools, of models for BoTorch and of studies.

Names of the library are reached through ``gpe`` and the packages of its functions, so that what moves is found.
"""

import contextlib
import csv
import functools
import importlib
import io
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

import gp_ensembles as gpe
from benchmarks.freeze.streams import QUANTILES, Arrays, Entry, distribution, normal, plain, seeded
from gp_ensembles.papers.fusion.forecasts import moment_forecast
from studies.__main__ import main as run_study
from studies.registry import PAPERS

LABELS = "#labels"  # the end of the name of what says which row of a table is which
# Studies whose quick form takes a few seconds without a folder of data.
SHORT_STUDIES = frozenset(
    {f"ie-gp/{name}" for name in ("figure-10", "figure-11", "lemma-1", "lemma-2", "theorem-1", "theorem-2")}
    | {f"doebe/experiment-{number}" for number in (1, 2, 3)}
    | {f"doebe/appendix-{letter}" for letter in "dfgh"}
    | {"knots/figure-1", "knots/figure-2", "maskerade/figure-3", "follow-ups/consensus", "follow-ups/active-learning"}
)


class SkippedError(Exception):
    """An entry that cannot be made here, and why."""


def tool_entries() -> dict[str, Entry]:
    """Fits of the papers' tools and models for BoTorch, by name."""
    return {
        **{f"papers/{name}": entry for name, entry in _PAPERS_TOOLS.items()},
        **{f"botorch/{name}": entry for name, entry in _BOTORCH.items()},
    }


def study_entries(which: str, data: Path | None) -> dict[str, Entry]:
    """Quick tables of studies, by name.

    Args:
        which: ``all``, the ``short`` ones or ``none``.
        data: A folder with a manifest, for studies of sets.
    """
    return {
        f"studies/{paper.name}/{experiment.name}": functools.partial(_study, paper.name, experiment.name, data)
        for paper in PAPERS.values()
        for experiment in paper.experiments
        if which == "all" or (which == "short" and f"{paper.name}/{experiment.name}" in SHORT_STUDIES)
    }


# The papers' tools


def _package(of: Callable[..., object], module: str = "") -> ModuleType:
    """The package in which a function is, wherever that has moved to, or one of its modules."""
    package = of.__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.{module}" if module else package)


def _held_out(num_rows: int = 120) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    X, y = plain(seeded(30))
    return X[:num_rows], y[:num_rows], X[-20:], y[-20:]


def _knots(**settings: Any) -> Arrays:
    X, y, ahead, target = _held_out()
    found = gpe.select_knots(X, y, generator=seeded(31), **settings)
    posterior = found.model.posterior(ahead)
    return {
        **distribution(found.predict(ahead), target),
        "knots": found.knots,
        "objective": [step.objective for step in found.history],
        "upper_bound": [step.upper_bound for step in found.history],
        "posterior": torch.cat([posterior.mean, posterior.variance], -1),
    }


def _default_knots() -> Arrays:
    return _knots()


def _greedy_knots() -> Arrays:
    return _knots(strategy=_package(gpe.select_knots).GreedyBlocks(max_knots=20))


def _knots_one_at_a_time() -> Arrays:
    sparse = _package(gpe.select_knots)
    kernel = ScaleKernel(RBFKernel()).double()
    return _knots(kernel=kernel, strategy=sparse.OneAtATime(sparse.RandomSubset(), max_knots=8))


def _fitc_knots() -> Arrays:
    sparse = _package(gpe.select_knots)
    return _knots(strategy=sparse.Simultaneous(10), approximation=sparse.FITC)


def _knots_online() -> Arrays:
    sparse, (X, y, ahead, target) = _package(gpe.select_knots), _held_out()
    found = [gpe.select_knots(X, y), gpe.select_knots(X, y, strategy=sparse.GreedyBlocks(max_knots=20))]
    online = sparse.start_online(found, gpe.meta_learners.FixedShare(0.01))
    predicted = online.observe(ahead, target)
    return {"log_prob": predicted.log_prob, "log_weights": online.log_weights, "mean": online.predict(ahead[:5]).mean}


def _fused(model: str, inference: str, **settings: Any) -> Arrays:
    fusion, (X, y, ahead, target) = _package(gpe.fit_fusion), _held_out()

    def experts(rows: Tensor) -> list[Any]:
        means = ((3 * rows[:, 0]).sin(), 0.5 * rows[:, 0] * rows[:, 1] + 0.2)
        return [moment_forecast(mean, scale) for mean, scale in zip(means, (0.3, 0.6), strict=True)]

    known = getattr(fusion, model)(X, y, experts(X))
    fitted = gpe.fit_fusion(known, getattr(fusion, inference)(**settings), generator=seeded(32))
    predicted = distribution(fitted.predict(ahead, experts(ahead)), target)
    return {**predicted, "weights": fitted.expert_weights(ahead).mean}


def _learned_experts() -> Arrays:
    """Experts and weights that are learned together."""
    fusion, (X, y, ahead, target) = _package(gpe.fit_fusion), _held_out(60)
    kernel = ScaleKernel(RBFKernel()).double()
    prior = fusion.FourierPrior.from_kernel(kernel, 2, num_frequencies=6, generator=seeded(33))
    fitted = gpe.fit_fusion(fusion.HetGP(X, y, prior, prior), fusion.LaplaceApproximation(), generator=seeded(34))
    return distribution(fitted.predict(ahead), target)


def _products() -> Arrays:
    """Products of experts with fixed weights, and stacking."""
    fusion, (X, y, ahead, _) = _package(gpe.fit_fusion), _held_out()
    sparse = _package(gpe.select_knots)
    kernels = [ScaleKernel(RBFKernel()).double(), ScaleKernel(MaternKernel()).double()]
    strategy = sparse.GreedyBlocks(max_knots=10)
    models = [gpe.select_knots(X, y, kernel, strategy=strategy).model for kernel in kernels]
    predictions = fusion.predict_experts(models, ahead)
    found = {}
    for name, log_weights in {"poe": 0.0, "gpoe": None}.items():
        predicted = fusion.fuse(predictions, log_weights, space="y")
        found[name] = torch.stack([predicted.mean, predicted.variance])
    log_prob = -normal(seeded(39), 2, 60).square()
    return {**found, "mean": predictions.mean, "stacking": fusion.stacking_weights(log_prob)}


def _marginalized(evaluations: int, draws: int, likelihood: Any = None, series: bool = False) -> Arrays:
    quadrature = _package(gpe.marginalize)
    t = torch.linspace(0, 3, 40, dtype=torch.float64)[:, None]
    y = (5 * t[:, 0]).sin() + 0.1 * normal(seeded(35), 40)
    if series:
        t = torch.arange(40, dtype=torch.float64)[:, None]
    given = {} if likelihood is None else {"likelihood": likelihood}
    prior = _package(gpe.marginalize, "prior").default_prior(t, y, 2)
    problem = quadrature.RegressionProblem(t, y, prior, **given)
    budget = quadrature.Budget(evaluations, draws=draws)
    found = gpe.marginalize(problem, budget, generator=seeded(36))
    predicted = found.predict(t[:6] + 0.05 * (t[1] - t[0]))
    posterior = found.model().posterior(t[:5])
    return {
        "evidence": [found.log_evidence, found.log_evidence_sd, found.quadrature.log_evidence],
        "components": found.posterior_components,
        "mean": predicted.mean,
        "variance": predicted.variance,
        "posterior": torch.cat([posterior.mean, posterior.variance], -1),
        "weights": found.top_kernels(3).weights,
    }


def _quadrature() -> Arrays:
    return _marginalized(60, 20_000)


def _search_only() -> Arrays:
    return _marginalized(40, 0)


def _structured(module: str, likelihood: str) -> Arrays:
    """The quadrature with a likelihood of many rows."""
    kind = getattr(_package(gpe.marginalize, module), likelihood)
    knots = torch.linspace(0, 3, 12, dtype=torch.float64)[:, None]
    made = kind(knots) if likelihood == "SparseLikelihood" else kind
    return _marginalized(20, 0, made, series=likelihood == "ToeplitzLikelihood")


def _circle_rows() -> Tensor:
    generator = seeded(37)
    angle = 6.28 * torch.rand(100, 1, generator=generator, dtype=torch.float64)
    rows = torch.cat([angle.cos(), angle.sin(), (2 * angle).sin(), angle.cos() ** 3], -1)
    return rows + 0.02 * normal(generator, 100, 4)


def _embedded(stay: float | None = None, walk: float = 0.0) -> Arrays:
    rows = _circle_rows()
    settings = _package(gpe.ie_gplvm).LatentSettings(random_walk_ratio=walk)
    latent = gpe.ie_gplvm(num_outputs=4, stay=stay, settings=settings, generator=seeded(38))
    first = latent.start(rows[:60])
    seen = latent.update(rows[60:80], block_size=5)
    back = latent.inverse_transform(seen.embedding, seen.expert)
    gaps = rows[80:].clone()
    gaps[:, 3] = math.nan
    return {
        "start": first.by_expert,
        "places": seen.by_expert,
        "log_weights": latent.log_weights,
        "mean": back.mean,
        "variance": back.variance,
        "imputed": latent.impute(gaps),
    }


def _transformer() -> Arrays:
    rows = _circle_rows().numpy()
    model = gpe.EnsembleGPLVM(warmup=60, num_frequencies=20, block_size=5, random_state=0).fit(rows[:80])
    places = model.transform(rows[80:])
    return {"places": places, "back": model.inverse_transform(places), "weights": model.expert_weights_}


_PAPERS_TOOLS: dict[str, Entry] = {
    "knots/default": _default_knots,
    "knots/greedy": _greedy_knots,
    "knots/one_at_a_time": _knots_one_at_a_time,
    "knots/fitc": _fitc_knots,
    "knots/online": _knots_online,
    "fusion/pbhs": functools.partial(_fused, "PBHS", "LaplaceApproximation"),
    "fusion/bhs": functools.partial(_fused, "BHS", "LaplaceApproximation"),
    "fusion/bhs_modes": functools.partial(_fused, "BHS", "MAP"),
    "fusion/het_gp": _learned_experts,
    "fusion/products": _products,
    "quadrature/default": _quadrature,
    "quadrature/search_only": _search_only,
    "quadrature/toeplitz": functools.partial(_structured, "toeplitz", "ToeplitzLikelihood"),
    "quadrature/sparse": functools.partial(_structured, "low_rank", "SparseLikelihood"),
    "embedding/ie_gplvm": _embedded,
    "embedding/dsie_gplvm": functools.partial(_embedded, 0.99, 1e-4),
    "embedding/transformer": _transformer,
}


# BoTorch


def _observations() -> tuple[Tensor, Tensor, Tensor]:
    generator = seeded(40)
    X = torch.rand(14, 2, generator=generator, dtype=torch.float64)
    Y = -(X - 0.4).square().sum(-1, keepdim=True) + 0.01 * normal(generator, 14, 1)
    return X, Y, torch.rand(6, 2, generator=generator, dtype=torch.float64)


def _of_model(model: Any, ahead: Tensor, best: Tensor) -> dict[str, Any]:
    posterior = model.posterior(ahead)
    noisy = model.posterior(ahead, observation_noise=True)
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    joint = qLogExpectedImprovement(model, best_f=best)
    one = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
    return {
        "mean": posterior.mean,
        "variance": posterior.variance,
        "noisy": noisy.variance,
        "quantiles": posterior.quantile(levels),
        "log_ei": _with_seed(lambda: joint(ahead.unflatten(0, (3, 2)))),
        "log_ei_own_sampler": _with_seed(lambda: one(ahead.unsqueeze(-2))),
        "samples": _with_seed(lambda: posterior.rsample(torch.Size([5]))),
    }


def _with_seed(call: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(0)
    return call().detach()


def _exact_model() -> Arrays:
    X, Y, ahead = _observations()
    model = gpe.ExactEnsembleModel(X, Y).fit()
    best = Y.max()
    improvement = LogExpectedImprovement(model, best_f=best)
    more = model.condition_on_observations(ahead[:2], Y[:2])
    return {
        **_of_model(model, ahead, best),
        "analytic": improvement(ahead.unsqueeze(-2)).detach(),
        "log_weights": model.log_weights,
        "conditioned": more.posterior(ahead).mean,
    }


def _online_model(spec: str | None = None) -> Arrays:
    X, Y, ahead = _observations()
    if spec is None:
        model = gpe.EnsembleModel(X, Y, generator=seeded(41))
    else:
        model = gpe.EnsembleModel(X, Y, ensemble=getattr(gpe, spec), generator=seeded(41))
    more = model.condition_on_observations(ahead[:2], Y[:2])
    return {
        **_of_model(model, ahead, Y.max()),
        "log_weights": model.log_weights,
        "conditioned": more.posterior(ahead).mean,
    }


def _thompson() -> Arrays:
    X, Y, _ = _observations()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    model = gpe.ExactEnsembleModel(X, Y).fit()
    return {"suggested": gpe.thompson(model, bounds, 2, raw_samples=64, num_restarts=2, generator=seeded(44))}


_BOTORCH: dict[str, Entry] = {
    "exact": _exact_model,
    "online": _online_model,
    "online_e_doebe": functools.partial(_online_model, "e_doebe"),
    "thompson": _thompson,
}


# Studies

_CLOCK = re.compile(r"seconds|time\b", re.IGNORECASE)


def _study(paper: str, experiment: str, data: Path | None) -> Arrays:
    """The tables that a study writes with ``--quick``: their numbers, but those of clocks, and their labels."""
    sets = PAPERS[paper].experiment(experiment).sets
    if sets and data is None and not any(one.made_up for one in sets):
        raise SkippedError("it needs a folder of data, --data")
    words = [paper, experiment, "--quick", "true", "--progress", "false"]
    words += ["--data", str(data)] if sets and data is not None else []
    with tempfile.TemporaryDirectory() as folder:
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = run_study([*words, "--out", folder])
        if code:
            raise RuntimeError(errors.getvalue().strip() or f"it ended with {code}")
        tables = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.csv"))}
    if not tables:
        raise RuntimeError("it wrote no table")
    return {key: value for stem, text in tables.items() for key, value in table_arrays(stem, text).items()}


def table_arrays(name: str, text: str) -> dict[str, Any]:
    r"""A table as an array of its numbers, NaN elsewhere, and one of what else stands in each row; no times.

    Example:
        >>> found = table_arrays("scores", "set,error,seconds\npump,0.5,3.1\n")
        >>> found["scores"], found["scores#labels"].tolist()
        (array([[nan, 0.5]]), ['pump'])
    """
    header, *rows = csv.reader(io.StringIO(text))
    kept = [place for place, title in enumerate(header) if not _CLOCK.search(title)]
    rows = [[row[place] for place in kept] for row in rows if not any(_is_clock(cell) for cell in row)]
    numbers = [[_number(cell) for cell in row] for row in rows]
    labels = [" | ".join(cell for cell in row if cell and math.isnan(_number(cell))) for row in rows]
    shape = (len(rows), len(kept))
    return {name: np.array(numbers, dtype=np.float64).reshape(shape), name + LABELS: np.array(labels, dtype=np.str_)}


def _is_clock(cell: str) -> bool:
    return bool(_CLOCK.search(cell)) and math.isnan(_number(cell))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
