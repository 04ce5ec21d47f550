"""An ensemble in plain loops: row after row, expert after expert, every layer by its equation; what plans must say.

Experts learn one row at a time by their pure updates, which are held by tests of their own; all around them is here:
lagged targets, innovation models, fixed share, outliers, absent experts, and quarantine.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine import Ensemble, outliers, quarantine
from gp_ensembles.filters.rows import Rows
from gp_ensembles.numerics.cholesky import NumericalError

MEMORY, MOST = 0.99, 1e8
NOISE = (1 - MEMORY) / (1 + MEMORY)


class Predicted(NamedTuple):
    """Before each target: moments of the mixture, log density of the target, and weights (M K,)."""

    mean: float
    variance: float
    log_prob: float
    weights: list[float]


class Component(NamedTuple):
    """A prediction that the rule weighs."""

    mean: float
    variance: float
    df: float  # infinite for a normal one
    log_prob: float


class Errors:
    """Innovation models of one expert."""

    def __init__(self, models):
        self.models, self.scale = models, [1.0] * len(models)
        self.product, self.square, self.last, self.age = 0.0, 1.0, 0.0, 0

    def drift(self) -> float:
        rho = min(max(self.product / self.square, -0.2), 1.0)
        rho *= max(0.0, (1 + NOISE) - NOISE / max(rho * rho, NOISE * NOISE))
        return rho ** (self.age + 1) * self.last

    def ahead(self, mean: float, variance: float, y: float) -> list[Component]:
        found = []
        for model, scale in zip(self.models, self.scale, strict=True):
            center = mean + (self.drift() if model.autoregressive else 0.0)
            size, df = variance * scale * model.width, model.degrees_of_freedom
            spread = size if math.isinf(df) else size * df / (df - 2)
            found.append(Component(center, spread, df, density(y, center, size, df)))
        return found

    def learn(self, mean: float, variance: float, y: float, share: float) -> None:
        if math.isnan(y):
            self.age += 1
            return
        error, drift = y - mean, self.drift()
        for k, model in enumerate(self.models):
            moved = error - drift if model.autoregressive else error
            z = min(max(moved * moved / variance, 1e-6), 1e30)
            g, df = self.scale[k], min(model.degrees_of_freedom, 20.0)
            self.scale[k] = g * (1 - model.rate + model.rate * (df + 1) * z / (df * g + z))
        if self.age == 0:
            self.product = MEMORY * self.product + error * share * self.last / variance
            self.square = MEMORY * self.square + self.last**2 / variance
        self.last, self.age = error * share, 0


def density(y: float, center: float, scale: float, df: float) -> float:
    """Log density with a squared scale."""
    z = (y - center) ** 2 / scale
    if math.isinf(df):
        return -0.5 * (z + math.log(2 * math.pi * scale))
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi * scale)
    return constant - 0.5 * (df + 1) * math.log1p(z / df)


class Plain:
    """One ensemble whose rule is fixed share and whose expert objects have one expert each."""

    def __init__(self, ensemble: Ensemble) -> None:
        assert all(expert.num_experts == 1 for expert in ensemble.experts)
        self.ensemble, self.layers = ensemble, ensemble.layers
        self.bound, self.states = ensemble.bind(), [expert.init() for expert in ensemble.experts]
        models = () if self.layers.bank is None else self.layers.bank.models
        self.errors = [Errors(models) for _ in ensemble.experts]
        self.weights = [1 / ensemble.num_experts] * ensemble.num_experts
        self.known = [] if ensemble.memory is None else [0.0] * ensemble.memory.lags[-1]
        self.until, self.failed, self.row = [0] * len(self.bound), [0] * len(self.bound), 0
        self.beyond, self.last_beyond = 0.0, 0  # share of targets beyond the threshold, and the last row with one

    @torch.no_grad()
    def observe(
        self, X: Tensor, y: Tensor, steps: Tensor | None = None, extra: Tensor | None = None
    ) -> list[Predicted]:
        given = [part if part is None else part.tolist() for part in (steps, extra)]
        rows = zip(X, y.tolist(), *(part or [None] * len(y) for part in given), strict=True)
        return [self._row(x, target, step, noise) for x, target, step, noise in rows]

    def _row(self, x: Tensor, y: float, step: float | None, noise: float | None) -> Predicted:
        y = min(max(y, -MOST), MOST) if self.layers.outlier_threshold is not None else y
        self.until = [0 if until <= self.row else until for until in self.until]
        lagged = x.new_tensor([self.known[-lag] for lag in (() if not self.known else self.ensemble.memory.lags)])
        given = Rows(*(None if part is None else x.new_tensor([part]) for part in (y, None, noise, step)))
        inputs = torch.cat([x, lagged]).unsqueeze(0)
        after, own = self._experts(inputs, given)
        components = []
        for number, one in enumerate(own):
            copies = len(self.weights) // len(own)
            if one is None:
                components += [None] * copies
                continue
            components += [one, *self.errors[number].ahead(one.mean, one.variance, y)]
        awake = [0.0 if one is None else w for one, w in zip(components, self.weights, strict=True)]
        before = [w / sum(awake) for w in awake]
        pairs = [(w, one) for w, one in zip(before, components, strict=True) if one is not None]
        mean = sum(w * one.mean for w, one in pairs)
        variance = sum(w * (one.variance + (one.mean - mean) ** 2) for w, one in pairs)
        share, log_prob, threshold = 1.0, math.nan, self.layers.outlier_threshold
        if not math.isnan(y):
            log_prob = log_sum([(w, one.log_prob) for w, one in pairs])
            if threshold is not None and abs(y - mean) > threshold * variance**0.5:
                passed, self.last_beyond = self.row - self.last_beyond, self.row
                self.beyond = self.beyond * math.exp(-passed / outliers.WINDOW) + 1 / outliers.WINDOW
                share = (threshold * variance**0.5 / (y - mean)) ** 4 if self.beyond <= outliers.MOST else 1.0
                after, _ = self._experts(inputs, given._replace(share=x.new_tensor([share])))
        self.states = after
        for one, errors in zip(own, self.errors, strict=True):
            if one is not None:
                errors.learn(one.mean, one.variance, y, share)
            else:  # it knows of no error, and its pairs stay
                errors.last, errors.age = (0.0, 0) if not math.isnan(y) else (errors.last, errors.age + 1)
        self._weigh(components, pairs, y, share)
        self._remember(y, mean, share)
        self.row += 1
        return Predicted(mean, variance, log_prob, before)

    def _experts(self, inputs: Tensor, rows: Rows) -> tuple[list, list[Component | None]]:
        """States after a row, and predictions before it: ``None`` of those that are absent or in quarantine."""
        after, own = [], []
        for number, (bound, state) in enumerate(zip(self.bound, self.states, strict=True)):
            if self.until[number]:
                after.append(state)
                own.append(None)
                continue
            try:
                new, steps = bound.update_block(state, bound.features(inputs), rows)
            except NumericalError:
                new, steps = state, [torch.nan] * 3
            df = getattr(steps, "degrees_of_freedom", None)
            mean, variance, log_prob = (float(part) for part in steps[:3])
            is_sound = math.isfinite(mean) and 0 < variance < math.inf
            if not is_sound and not self.ensemble.experts[number].traits.may_be_absent:
                self.until[number] = self.row + quarantine.QUARANTINE_ROWS * 2 ** self.failed[number]
                self.failed[number] += 1
                new = self.ensemble.experts[number].init()
            after.append(new)
            own.append(Component(mean, variance, math.inf if df is None else float(df), log_prob) if is_sound else None)
        return after, own

    def _weigh(self, components: list, pairs: list, y: float, share: float) -> None:
        """Fixed share; absent components have the density of the others."""
        rule = self.ensemble.meta_learner
        if math.isnan(y):
            posterior = self.weights
        else:
            together = log_sum([(w, one.log_prob * share) for w, one in pairs])
            logs = [together if one is None else one.log_prob * share for one in components]
            tempered = [w * math.exp(log - together) for w, log in zip(self.weights, logs, strict=True)]
            posterior = [w / sum(tempered) for w in tempered]
        self.weights = [(1 - rule.share) * w + rule.share / len(posterior) for w in posterior]

    def _remember(self, y: float, mean: float, share: float) -> None:
        """The last targets: gaps from the autoregression, unusual outliers as what counts of them."""
        memory = self.ensemble.memory
        if memory is None:
            return
        lower, upper = memory.bounds.tolist()
        width = upper - lower
        if math.isnan(y):
            *slopes, shift = memory.coefficients.tolist()
            y = shift + sum(slope * self.known[-lag] for slope, lag in zip(slopes, memory.lags, strict=True))
            y = min(max(y, lower), upper)
        elif share < 1 and not lower - width <= y <= upper + width:
            y = mean + (y - mean) * share
        self.known.append(min(max(y, lower - 100 * width), upper + 100 * width))


def log_sum(pairs: list[tuple[float, float]]) -> float:
    """Logarithm of the sum of weights times exponentials."""
    most = max(log for _, log in pairs)
    return most + math.log(sum(w * math.exp(log - most) for w, log in pairs))
