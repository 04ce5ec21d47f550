"""Regret of the incremental ensembles on synthetic streams, with its bounds: figures 10 and 11 of Lu et al. (2022).

Figure 10 has the paper's function. Figure 11 has its two draws of Gaussian processes, on inputs of our own, and besides
the waves of figure 10 by turns and functions that move on. Experts know the noise, and nothing is learned before the
first row: the bounds are about experts that start from their prior.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.data.synthetic import switching_gps
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.bases import KernelDictionary
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.meta_learners.switching import MarkovSwitching, sticky_transition
from gp_ensembles.metrics import best_expert, best_switching_path, cumulative_regret
from studies.harness.panels import Curve, Panel, panels_table, save_panels
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.report import write_report
from studies.harness.text import aligned
from studies.ie_gp.bounds import batch_estimate, static_bound, switching_bound

NUM_ROWS = 4000
NUM_FEATURES = 100
_LEAST_ROWS = 32  # of a synthetic stream
_NOISE = 0.1  # standard deviation; functions have a size of one


class SwitchingTest(NamedTuple):
    """A stream of functions that take turns in segments of equal length.

    Attributes:
        title: What it is.
        num_segments: How many segments.
        draw: Inputs (T, 1) and targets (T,) from a length and a source of randomness.
        lengthscales: Those of the experts' kernels; the paper's eleven if there are none.
        noise: Standard deviation of the noise.
    """

    title: str
    num_segments: int
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    lengthscales: tuple[float, ...] = ()
    noise: float = _NOISE


class RegretCurves(NamedTuple):
    """Regret at several lengths of a stream, all in nats.

    Attributes:
        num_rows: The lengths.
        regret: Regret of the ensemble at each.
        bound: Its bound.
        rival: Regret of model averaging, which has no such bound; empty where it is the ensemble.
    """

    num_rows: list[float]
    regret: list[float]
    bound: list[float]
    rival: list[float]


def static_regret_curves(num_rows: int, num_features: int, *, generator: torch.Generator) -> RegretCurves:
    """IE-GP on the paper's function, against the best function in hindsight.

    The rival is the best of the experts' functions, refitted to all rows up to each length.

    Args:
        num_rows: Length of the stream.
        num_features: Features of each expert.
        generator: Source of the data and the frequencies.

    Example:
        >>> curves = static_regret_curves(60, 20, generator=torch.Generator().manual_seed(0))
        >>> all(regret <= bound for regret, bound in zip(curves.regret, curves.bound))
        True
    """
    X, y = waves(num_rows, generator)
    expert = dictionary_expert(X, num_features, generator)
    log_prob, _ = _log_probs(expert, BayesianModelAveraging(), X, y)
    with torch.no_grad():
        bound_expert = expert.bind()
        Phi, noise, prior_variance = bound_expert.features(X), bound_expert.noise, bound_expert.prior_variance
        lengths = _lengths(num_rows, 24)
        regrets, bounds = [], []
        for length in lengths:
            estimate = batch_estimate(Phi[:, :length], y[:length], noise, prior_variance)
            best = int(estimate.log_prob.sum(-1).argmax())
            norm2 = estimate.weights[best].square().sum()
            size = Phi[best, :length].square().sum(-1).mean()
            bound = static_bound(
                norm2, prior_variance[best], noise[best], num_features, length, size, expert.num_experts
            )
            rival = best_expert(estimate.log_prob).log_prob
            regrets.append(float(cumulative_regret(log_prob[:length], rival)[-1]))
            bounds.append(float(bound))
    return RegretCurves([float(length) for length in lengths], regrets, bounds, [])


def waves(num_rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (T, 1) from N(0, 100) and sin 2x + sin 3x with noise of variance 0.01, as in the paper (T,).

    Example:
        >>> X, y = waves(500, torch.Generator().manual_seed(0))
        >>> bool((y - (2 * X[:, 0]).sin() - (3 * X[:, 0]).sin()).std() < 0.12)
        True
    """
    X = 10 * torch.randn(num_rows, 1, dtype=torch.float64, device="cpu", generator=generator)
    truth = (2 * X[:, 0]).sin() + (3 * X[:, 0]).sin()
    return X, truth + _NOISE * torch.randn(num_rows, dtype=X.dtype, device="cpu", generator=generator)


def waves_in_turn(num_rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The two waves of figure 10 one at a time: sin 2x and sin 3x take turns in four segments.

    Example:
        >>> X, y = waves_in_turn(400, torch.Generator().manual_seed(0))
        >>> parts = slice(0, 100), slice(100, 200)
        >>> errors = [y[rows] - (rate * X[rows, 0]).sin() for rows, rate in zip(parts, (2, 3))]
        >>> bool(errors[0].std() < 0.12), bool(errors[1].std() < 0.12)
        (True, True)
    """
    X = 10 * torch.randn(num_rows, 1, dtype=torch.float64, device="cpu", generator=generator)
    parts = torch.tensor_split(X[:, 0], 4)
    truth = torch.cat([((2 + number % 2) * part).sin() for number, part in enumerate(parts)])
    return X, truth + _NOISE * torch.randn(num_rows, dtype=X.dtype, device="cpu", generator=generator)


def _kernels_in_turn(
    lengthscales: tuple[float, ...], shift: float, noise: float, num_rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A function of another length scale in each segment; inputs, of a range of 5, move on by the shift with each."""
    drawn = switching_gps(num_rows, lengthscales=lengthscales, noise=noise, generator=generator)
    return drawn.table.X + shift * drawn.parts["segment"].unsqueeze(-1), drawn.table.y


# In the paper's figure the inputs stay, as far as that is said: what each expert has learned of the other's function is
# wrong after the switch, and the best sequence of experts fares badly, too. Where inputs move on, nothing learned is
# contradicted, and the right expert changes all the same.
_SCALES = (0.01, 100.0)
PRINTED = SwitchingTest(
    "as printed: draws of two kernels", 2, partial(_kernels_in_turn, _SCALES, 0.0, 1.0), _SCALES, 1.0
)
WAVES = SwitchingTest("sin 2x and sin 3x take turns", 4, waves_in_turn)
NEW_INPUTS = SwitchingTest(
    "new function on new inputs", 4, partial(_kernels_in_turn, (10**0.5, 10**-0.5, 10**0.5, 10**-0.5), 5.0, _NOISE)
)


def switching_regret_curves(
    test: SwitchingTest, num_rows: int, num_features: int, *, generator: torch.Generator
) -> RegretCurves:
    r"""SIE-GP on functions that take turns, against the best sequence of its experts with as many switches.

    Every length has a stream of its own, cut into equal segments, and the chain that suits it:
    it stays with probability :math:`1 - S / (T - 1)`.

    Args:
        test: What the stream is.
        num_rows: Length of the longest stream.
        num_features: Features of each expert.
        generator: Source of the data and the frequencies.

    Example:
        >>> curves = switching_regret_curves(NEW_INPUTS, 64, 20, generator=torch.Generator().manual_seed(0))
        >>> all(regret <= bound for regret, bound in zip(curves.regret, curves.bound))
        True
    """
    lengths = _lengths(num_rows, 8)
    num_switches = test.num_segments - 1
    regrets, bounds, averaged = [], [], []
    for length in lengths:
        X, y = test.draw(length, generator)
        expert = dictionary_expert(X, num_features, generator, test.lengthscales, test.noise)
        stay = 1 - num_switches / (length - 1)
        rule = MarkovSwitching(sticky_transition(expert.num_experts, stay))
        log_prob, expert_log_prob = _log_probs(expert, rule, X, y)
        rival = best_switching_path(expert_log_prob, num_switches).log_prob
        regrets.append(float(cumulative_regret(log_prob, rival)[-1]))
        bounds.append(switching_bound(expert.num_experts, length, num_switches, stay))
        mean_log_prob = _log_probs(expert, BayesianModelAveraging(), X, y)[0]
        averaged.append(float(cumulative_regret(mean_log_prob, rival)[-1]))
    return RegretCurves([float(length) for length in lengths], regrets, bounds, averaged)


def static_figure(out: Path, *, draws: int, num_rows: int | None = None, progress: bool = False) -> str:
    """Figure 10: cumulative regret of IE-GP, and its bound.

    Args:
        out: Folder of the results.
        draws: Draws of data and frequencies.
        num_rows: Length of the stream; 4000 by default.
        progress: Show a progress bar.

    Returns:
        The table, for the eye.

    Raises:
        ValueError: If there are too few rows.
    """
    settings = {**_settings(num_rows), "function": "sin 2x + sin 3x"}
    results = Results(None, ("test", "draw"), draws)
    with running(results, out / "runs", draws, progress) as parts:
        for draw in range(draws):
            _run_part(parts, ("static", draw), f"static_{draw}", settings, static_regret_curves)
    titles = {"static": "IE-GP on sin 2x + sin 3x, x from N(0, 100)"}
    return _written(10, results, titles, out, "cumulative regret, nats", _static_curves)


def switching_figure(out: Path, *, draws: int, num_rows: int | None = None, progress: bool = False) -> str:
    """Figure 11: average switching regret of SIE-GP, its bound, and IE-GP for comparison; as :func:`static_figure`."""
    settings = _settings(num_rows)
    results = Results(None, ("test", "draw"), draws)
    tests = {"printed": PRINTED, "waves": WAVES, "new": NEW_INPUTS}
    with running(results, out / "runs", len(tests) * draws, progress) as parts:
        for name, test in tests.items():
            for draw in range(draws):
                curves_of = partial(switching_regret_curves, test)
                _run_part(parts, (name, draw), f"switching_{name}_{draw}", settings, curves_of)
    titles = {name: test.title for name, test in tests.items()}
    return _written(11, results, titles, out, "regret a row, nats", _switching_curves, linear_within=0.01)


def _settings(num_rows: int | None) -> dict[str, object]:
    rows = NUM_ROWS if num_rows is None else num_rows
    if rows < _LEAST_ROWS:
        raise ValueError(f"{rows} rows are too few to show how regret grows; use at least {_LEAST_ROWS}")
    return {"num_rows": rows, "num_features": NUM_FEATURES, "noise": _NOISE}


def dictionary_expert(
    X: Tensor,
    num_features: int,
    generator: torch.Generator,
    lengthscales: tuple[float, ...] = (),
    noise: float = _NOISE,
) -> GaussianExpert:
    """The experts of the paper's dictionary, or of other RBF kernels, of unit prior variance, that know the noise."""
    if lengthscales:
        kernel = RBFKernel(batch_shape=torch.Size([len(lengthscales)])).to(X)
        kernel.lengthscale = X.new_tensor(lengthscales).reshape(-1, 1, 1)
        scaled = ScaleKernel(kernel, batch_shape=kernel.batch_shape).to(X)
        features = RandomFourierFeatures.from_kernel(scaled, 1, num_features, generator=generator)
    else:
        ((_, found),) = KernelDictionary(num_features).build(X, generator=generator)
        assert isinstance(found, RandomFourierFeatures)
        features = found
    assert isinstance(features.kernel, ScaleKernel)
    features.kernel.outputscale = torch.ones_like(features.kernel.outputscale)
    expert = GaussianExpert(features)
    expert.likelihood.noise = torch.full_like(expert.likelihood.noise, noise**2)
    return expert


def _log_probs(expert: GaussianExpert, rule: MetaLearner, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log densities of the ensemble (T,) and of its experts (M, T), each made before its target."""
    predictions = OnlineEnsemble(Ensemble([expert], rule)).observe(X, y)
    return predictions.log_prob, predictions.experts.log_prob


def _lengths(num_rows: int, most: int) -> list[int]:
    """Lengths up to ``num_rows`` that grow by equal factors."""
    first = max(_LEAST_ROWS // 2, num_rows // 64)
    factor = (num_rows / first) ** (1 / (most - 1))
    return sorted({round(first * factor**i) for i in range(most)})


class _CurvesOf(Protocol):
    def __call__(self, num_rows: int, num_features: int, *, generator: torch.Generator) -> RegretCurves: ...


def _run_part(parts: Parts, key: tuple[str, int], name: str, settings: dict[str, object], curves_of: _CurvesOf) -> None:
    """The regret of one draw."""
    num_rows = settings["num_rows"]
    assert isinstance(num_rows, int)

    def make() -> Record:
        curves = curves_of(num_rows, NUM_FEATURES, generator=torch.Generator().manual_seed(key[1]))
        share = max(regret / bound for regret, bound in zip(curves.regret, curves.bound, strict=True))
        return Record(settings, {"largest_share_of_bound": share}, curves._asdict())

    parts.run(key, name, settings, make, f"{key[0]}, draw {key[1] + 1}")


def _static_curves(found: list[Record]) -> list[Curve]:
    return [_curve("IE-GP", found, "regret", False), _curve("bound", found, "bound", False)]


def _switching_curves(found: list[Record]) -> list[Curve]:
    named = {"SIE-GP": "regret", "bound of SIE-GP": "bound", "IE-GP": "rival"}
    return [_curve(name, found, part, True) for name, part in named.items()]


def _curve(name: str, found: list[Record], part: str, averaged: bool) -> Curve:
    lengths = found[0].curves["num_rows"]
    values = torch.tensor([record.curves[part] for record in found], dtype=torch.float64, device="cpu")
    if averaged:
        values = values / values.new_tensor(lengths)
    middle = values.quantile(0.5, dim=0)
    return Curve(name, lengths, middle.tolist(), values.amin(0).tolist(), values.amax(0).tolist())


def _written(
    figure: int,
    results: Results[None],
    titles: Mapping[str, str],
    out: Path,
    quantity: str,
    curves_of: Callable[[list[Record]], list[Curve]],
    linear_within: float = math.inf,
) -> str:
    found = {title: list(results.found(name).values()) for name, title in titles.items() if results.found(name)}
    panels = [Panel(title, curves_of(records)) for title, records in found.items()]
    shares = {
        title: max(record.scores["largest_share_of_bound"] for record in records) for title, records in found.items()
    }
    content = {
        "figure": figure,
        "draws": results.num_repetitions,
        "largest_share_of_bound": shares,
        "runs": {title: [record._asdict() for record in records] for title, records in found.items()},
        "failures": results.failed(),
    }
    lines = []
    for panel in panels:
        lengths = panel.curves[0].x
        places = sorted({round(i * (len(lengths) - 1) / 7) for i in range(8)})
        rows = [[int(lengths[i]), *(curve.middle[i] for curve in panel.curves)] for i in places]
        share = shares[panel.title]
        verdict = "below its bound at every length of every draw" if share <= 1 else "NOT always below its bound"
        lines += [f"{panel.title}: {quantity}, medians of {results.num_repetitions} draws"]
        lines += [aligned(["rows", *(curve.name for curve in panel.curves)], rows)]
        lines += [f"{panel.curves[0].name} is {verdict}: at most {100 * share:.1f} % of it"]
    x_label = "length of the stream, rows"
    draw = partial(save_panels, panels, x_label=x_label, y_label=quantity, linear_within=linear_within)
    text = "\n".join([*lines, *results.failure_lines()])
    table = panels_table(panels, ["test", "curve", "rows"])
    return write_report(out / f"figure_{figure}", text, table, content, {"": draw})
