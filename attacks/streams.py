"""Adversarial streams through every combination of expert, adaptation, weight rule, error model and dtype.

Rows are constant, collinear, alternating, as large or small as numbers get, repeated, missing for long, or jump between
regimes; time between them passes evenly or not. Hypothesis draws streams of such pieces, and shrinks those that break a
promise: no call raises anything but ``ValueError``, ``TypeError`` or ``NumericalError`` with a sentence; no mean and no
variance is NaN, and no variance negative; weights sum to one; a call that is rejected, and a prediction, change
nothing; illegal rows are rejected.
"""

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attacks.instances import DTYPES, NUM_INPUTS, Instance, instances
from attacks.telling import Table, Telling
from gp_ensembles.engine import OnlineEnsemble
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions
from gp_ensembles.numerics.cholesky import NumericalError

DOCUMENTED = (ValueError, TypeError, NumericalError)
_STREAMS = 8  # of one combination, before the next has its turn
_MEAN_ROWS = 80  # of a stream, about
_LONGEST_PIECE, _MOST_PIECES = 40, 8
_FEW = 4  # rows of each piece that are predicted first
_OFF = {torch.float64: 1e-9, torch.float32: 2e-3}  # of a sum of weights
_LEGAL = 18  # pieces to two with an illegal number
_STEPS = {"even": None, "at once": 0.0, "halves": 0.5, "long": 1e4}
_DECADES = {torch.float64: 300.0, torch.float32: 37.0}
_DENORMAL = {torch.float64: 5e-324, torch.float32: 1e-45}


class Finding(NamedTuple):
    """What broke a promise: the combination, the kind of rows, and how."""

    instance: str
    rows: str
    what: str


def _noise(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def _constant(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _noise(draw, 1, NUM_INPUTS).expand(n, -1).clone(), torch.full((n,), float(_noise(draw, 1)))


def _collinear(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = _noise(draw, n, 1)
    return x * torch.arange(1.0, NUM_INPUTS + 1, dtype=torch.float64), 3 * x.squeeze(-1)


def _alternating(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    sign = 1.0 - 2.0 * (torch.arange(n, dtype=torch.float64) % 2)
    return sign.unsqueeze(-1).expand(n, NUM_INPUTS).clone(), 10 * sign


def _large(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    power = _DECADES[dtype] * torch.rand(n, generator=draw, dtype=torch.float64)
    return 10 ** (power / 2).unsqueeze(-1) * _noise(draw, n, NUM_INPUTS).sign(), 10**power * _noise(draw, n).sign()


def _small(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X, y = _large(n, draw, dtype)
    return 1 / X, 1 / y


def _denormal(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.full((n, NUM_INPUTS), _DENORMAL[dtype]), torch.full((n,), -_DENORMAL[dtype], dtype=torch.float64)


def _repeated(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X, y = _noise(draw, 2, NUM_INPUTS), _noise(draw, 2)
    places = torch.arange(n) * 2 // max(n, 1)
    return X[places], y[places]


def _missing(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _noise(draw, n, NUM_INPUTS), torch.full((n,), torch.nan)


def _jumping(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X = _noise(draw, n, NUM_INPUTS)
    level = 10 ** (6 * _noise(draw, 1)) * (torch.arange(n) >= n // 2)
    return X, X.sum(-1) + level + 0.1 * _noise(draw, n)


def _plain(n: int, draw: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X = _noise(draw, n, NUM_INPUTS)
    return X, X.sum(-1) + 0.1 * _noise(draw, n)


ROWS: dict[str, Callable[[int, torch.Generator, torch.dtype], tuple[Tensor, Tensor]]] = {
    "plain": _plain,  # first: what hypothesis shrinks to
    "constant": _constant,
    "collinear": _collinear,
    "alternating": _alternating,
    "large": _large,
    "small": _small,
    "denormal": _denormal,
    "repeated": _repeated,
    "missing": _missing,
    "jumping": _jumping,
}


class Piece(NamedTuple):
    """Rows that follow one another, told by few numbers, so that hypothesis can shrink them.

    Attributes:
        kind: One of :data:`ROWS`.
        num_rows: How many.
        seed: Of what is random in them.
        pace: Time between them, one of the names of steps.
        spoiled: An illegal number that stands in one of them; zero for none.
    """

    kind: str
    num_rows: int
    seed: int
    timing: str
    spoiled: float

    def __str__(self) -> str:
        spoiled = f" with {self.spoiled}" if self.spoiled else ""
        return f"{self.num_rows} {self.kind}{spoiled} ({self.timing}, {self.seed})"


PIECES = st.builds(
    Piece,
    st.sampled_from(list(ROWS)),
    st.integers(1, _LONGEST_PIECE),
    st.integers(0, 2**16),
    st.sampled_from(list(_STEPS)),
    st.sampled_from([0.0] * _LEGAL + [torch.nan, torch.inf]),
)
STREAMS = st.lists(PIECES, min_size=1, max_size=_MOST_PIECES)


class BrokenPromiseError(Exception):
    """A promise is broken."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.what}: {finding.instance}: {finding.rows}")
        self.finding = finding


def rows_for(instance: Instance, piece: Piece) -> tuple[Tensor, Tensor, Tensor | None]:
    """The rows of a piece in the dtype, and with the targets, of a combination."""
    dtype, draw = DTYPES[instance.dtype], torch.Generator().manual_seed(piece.seed)
    X, y = ROWS[piece.kind](piece.num_rows, draw, dtype)
    if instance.has_forecasts:
        predicted = torch.where(_noise(draw, len(y)) > 1, torch.nan, y + _noise(draw, len(y)))
        X = torch.cat([X, predicted.to(X).unsqueeze(-1)], 1)
    if piece.spoiled:
        X[int(torch.randint(len(X), (), generator=draw)), int(torch.randint(NUM_INPUTS, (), generator=draw))] = (
            piece.spoiled
        )
    if instance.has_labels:
        y = torch.where(torch.isnan(y), y, (y > 0).to(y.dtype))
    if instance.num_outputs is not None:
        y = torch.stack([y, -2 * y], -1)
    step = _STEPS[piece.timing]
    return X.to(dtype), y.to(dtype), None if step is None else torch.full((len(X),), step, dtype=dtype)


def send(instance: Instance, pieces: Sequence[Piece]) -> Counter[str]:
    """Send a stream through a fresh ensemble.

    Returns:
        How many rows were learned and rejected.

    Raises:
        BrokenPromiseError: If a promise is broken.
    """
    counts: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        online = instance.build()
        for number, piece in enumerate(pieces):
            problem, is_rejected = broken_promise(online, *rows_for(instance, piece))
            if piece.spoiled and problem is None and not is_rejected:
                problem = "an input that is not finite was learned"
            counts["rejected" if is_rejected else "learned"] += piece.num_rows
            if problem is not None:
                rows = "; ".join(str(one) for one in pieces[: number + 1])
                raise BrokenPromiseError(Finding(", ".join(instance), rows, problem))
    return counts


def broken_promise(online: OnlineEnsemble, X: Tensor, y: Tensor, steps: Tensor | None) -> tuple[str | None, bool]:
    """Predict the first rows, then observe them all.

    Returns:
        The promise that is broken, if one is, and whether the rows were rejected.
    """
    first = None if steps is None else steps[:_FEW]
    problem, _ = _broken_by(online, lambda: online.predict(X[:_FEW], steps=first), may_change=False)
    if problem is not None:
        return f"predict: {problem}", False
    return _broken_by(online, lambda: online.observe(X, y, steps=steps), may_change=True)


def _broken_by(
    online: OnlineEnsemble, call: Callable[[], AnyMixture | EnsemblePredictions], may_change: bool
) -> tuple[str | None, bool]:
    before = {name: value.clone() for name, value in online.state_dict().items()}
    is_rejected = False
    try:
        found = call()
    except DOCUMENTED as error:
        if not str(error).strip() or "\n" in str(error):
            return f"{type(error).__name__} without a sentence: {error}", True
        is_rejected = True
    except Exception as error:  # whatever is not documented
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", False
    if is_rejected or not may_change:
        after = online.state_dict()
        moved = [name for name, value in before.items() if not torch.equal(_bits(value), _bits(after[name]))]
        if moved:
            return f"a rejected call changed {moved[0]}", is_rejected
    return (None if is_rejected else _wrong(online, found)), is_rejected


def _bits(value: Tensor) -> Tensor:
    return value.nan_to_num(nan=-1.5) if value.is_floating_point() else value


def _wrong(online: OnlineEnsemble, found: AnyMixture | EnsemblePredictions) -> str | None:
    variance = found.variance.diagonal(dim1=-2, dim2=-1) if found.variance.ndim > 2 else found.variance
    if bool(torch.isnan(found.mean).any()):
        return "a mean is NaN"
    if bool(torch.isnan(variance).any()):
        return "a variance is NaN"
    if bool((variance < 0).any()):
        return "a variance is negative"
    for log_weights in (found.log_weights, online.log_weights):
        if not bool(((log_weights.exp().sum(0) - 1).abs() < _OFF[log_weights.dtype]).all()):  # NaN fails, too
            return "weights do not sum to one"
    return None


def attack(instance: Instance, num_streams: int, seed: int) -> tuple[Counter[str], Finding | None]:
    """Send streams that hypothesis draws through one combination.

    Returns:
        How many rows were learned and rejected, and what was found.
    """
    counts: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @settings(
        max_examples=num_streams,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(STREAMS)
    def promises_are_kept(pieces: list[Piece]) -> None:
        counts.update(send(instance, pieces))

    try:
        promises_are_kept()
    except BrokenPromiseError as error:
        return counts, error.finding
    return counts, None


def main(argv: Sequence[str]) -> int:
    """Run the attack; returns 0 if every promise was kept, 1 if one was not."""
    telling = Telling("streams", __doc__)
    telling.options.add_argument("--rows", type=int, default=100_000, help="in all, shared by the combinations")
    telling.options.add_argument("--seed", type=int, default=0)
    values = telling.read(argv)
    by_expert: dict[str, Counter[str]] = defaultdict(Counter)
    attacked: set[Instance] = set()
    findings: dict[tuple[str, str], Finding] = {}
    left, number = values.rows, 0
    while left > 0:
        some = instances()
        random.Random(f"{values.seed} {number}").shuffle(some)
        for instance in some:
            if left <= 0:
                break
            number += 1
            num_streams = max(1, min(_STREAMS, left // _MEAN_ROWS))
            counts, finding = attack(instance, num_streams, 1_000_003 * values.seed + number)
            by_expert[instance.expert] += counts
            attacked.add(instance)
            left -= counts.total()
            if finding is not None:
                findings.setdefault((instance.expert, finding.what), finding)
    rows = [[name, counts.total(), counts["rejected"]] for name, counts in sorted(by_expert.items())]
    title = (
        f"Adversarial rows through {len(attacked)} of {len(instances())} combinations in {telling.seconds:.0f} seconds"
    )
    tables = [Table(title, ["expert", "rows", "refused in a sentence"], rows)]
    telling.tell(
        *tables, *([Table("What was found, and is open", Finding._fields, list(findings.values()))] if findings else [])
    )
    return 1 if findings else 0
