"""What users get wrong: sizes, constants, duplicates, gaps, infinities, mismatched priors; and the errors they see."""

import functools

import pytest
import torch

from gp_ensembles.papers.quadrature import Budget, Hyperprior, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.papers.quadrature.likelihoods import check_matrix_memory
from gp_ensembles.papers.quadrature.prior import HalfNormal, LogNormal, default_prior, fixed, inferred, paper_prior
from tests.papers.quadrature.cases import prior_of, seeded, tensor

pytestmark = pytest.mark.usefixtures("few_nodes")
DRAWS = Search(PriorPolicy(), num_ascents=0)
every_search = pytest.mark.parametrize(
    "search", [DRAWS, Search(PriorPolicy(), coverage_threshold=1.1, ascent_evaluations=4)], ids=["draws", "ascents"]
)


def line(num_rows=10):
    X = torch.linspace(0.0, 3.0, num_rows, dtype=torch.float64).unsqueeze(-1)
    return X, torch.sin(3.0 * X.squeeze(-1))


def run(X, y, prior=None, *, evaluations=20, search=DRAWS):
    return marginalize(RegressionProblem(X, y, prior), Budget(evaluations, draws=0), search, generator=seeded(0))


def test_what_does_not_fit_into_memory_is_refused_before_it_is_tried():
    X = torch.zeros(100_000, 1, dtype=torch.float64)
    with pytest.raises(
        MemoryError, match=r"a likelihood of 100000 rows takes about 894.1 GiB, but only 14.9 GiB are available"
    ) as reported:
        check_matrix_memory(X, available=16 * 10**9)
    most = int(str(reported.value).split("or at most ")[1].split()[0])
    assert check_matrix_memory(X[:most], available=16 * 10**9) <= 0.8 * 16 * 10**9
    with pytest.raises(MemoryError):
        check_matrix_memory(X[: most + 2], available=16 * 10**9)
    step = int(str(reported.value).split("every ")[1].removesuffix("th"))
    check_matrix_memory(X[::step], available=16 * 10**9)  # what it advises is enough


def test_memory_is_told_before_a_likelihood(monkeypatch):
    X, y = line()
    scarce = functools.partial(check_matrix_memory, available=1000)
    monkeypatch.setattr("gp_ensembles.papers.quadrature.likelihoods.check_matrix_memory", scarce)
    with pytest.raises(MemoryError, match=r"a likelihood of 10 rows takes about .* or at most"):
        RegressionProblem(X, y)


def test_data_without_a_default_prior():
    X = tensor([1.0, 2.0], [0.0, 2.0], [3.0, 2.0])
    for inputs, y, message in [
        (X[:, :1], tensor(2.0, 2.0, 2.0), "the targets are constant"),
        (X[:, 1:], tensor(0.0, 1.0, 2.0), "constant"),
        (X, tensor(0.0, 1.0, 2.0), "constant"),
    ]:
        with pytest.raises(ValueError, match=message):
            RegressionProblem(inputs, y)
    for make in [default_prior, paper_prior]:
        with pytest.raises(ValueError, match=r"1 .*constant|constant.* 1"):
            make(X, tensor(0.0, 1.0, 2.0))


@every_search
def test_constant_inputs_are_only_noise(search):
    """They have no range, hence no periodogram; ascents may still find the noise."""
    X = torch.zeros(6, 1, dtype=torch.float64)
    found = run(X, tensor(1.0, -1.0, 0.5, 0.2, -0.4, 0.1), prior_of(2, noise=inferred(0.5, 0.5)), search=search)
    assert (found.num_failed, found.num_evaluations) == (0, 20)
    predicted = found.predict(tensor([0.0], [5.0]))
    assert bool(predicted.mean.isfinite().all())
    assert bool((predicted.variance > 0).all())


@every_search
def test_constant_targets_are_a_flat_function(search):
    X, _ = line()
    found = run(X, torch.full((10,), 3.0, dtype=torch.float64), prior_of(2), search=search)
    assert found.num_failed == 0
    torch.testing.assert_close(found.predict(X + 0.05).mean, 3.0 * torch.ones_like(X[:, 0]), rtol=0, atol=1e-6)


def test_duplicate_inputs_work_with_noise():
    X, y = line()
    X, y = torch.cat([X, X, X[:3]]), torch.cat([y, y + 0.1, y[:3] - 0.1])
    for prior in (prior_of(2), default_prior(X, y, 2), paper_prior(X, y, 2)):
        found = run(X, y, prior, evaluations=15)
        assert found.num_failed == 0
        assert (found.predict(X[:3]).mean - y[:3]).abs().max() < 1.0


def test_duplicate_inputs_without_noise_fail_kernel_by_kernel_or_all():
    X, y = line()
    X, y = torch.cat([X, X]).float(), torch.cat([y, y + 1.0]).float()
    prior = Hyperprior(HalfNormal(torch.ones(1)), LogNormal(-torch.ones(1), torch.ones(1)), 2, noise=fixed(1e-30))
    with pytest.raises(ValueError, match=r"none of .* kernels has a likelihood: .*float64, merge duplicate inputs"):
        run(X, y, prior)


def test_two_rows_are_enough():
    found = run(tensor([0.0], [1.0]), tensor(0.3, -0.2), evaluations=10)
    assert found.num_evaluations == 10
    assert bool(found.predict(tensor([0.5])).mean.isfinite().all())


def test_single_precision_throughout():
    X, y = (part.float() for part in line(20))
    found = run(X, y + 0.1 * torch.cos(40.0 * X.squeeze(-1)))
    predicted = found.predict(X[:3])
    assert predicted.mean.dtype == torch.float32
    assert bool(predicted.mean.isfinite().all())
    assert found.model().posterior(X[:3]).mean.dtype == torch.float32


def test_the_default_dtype_does_not_matter(wrong_default_dtype):
    found = run(*line())
    assert found.predict(line()[0][:2]).mean.dtype == torch.float64


@pytest.mark.parametrize(
    ("origin", "unit", "level", "scale"), [(0.0, 1e3, 0.0, 1e-8), (0.0, 1e3, 0.0, 1e8), (65536.0, 1.0, 1e6, 1.0)]
)
def test_units_and_origins_do_not_matter(origin, unit, level, scale):
    """Log densities change by the logarithm of the unit, predictions by the unit; of years and pascals, differences."""
    X, y = line(15)

    def moved(X):
        return X * unit + origin

    plain, other = (
        run(inputs, targets, default_prior(inputs, targets, 2), evaluations=15)
        for inputs, targets in ((X, y), (moved(X), level + scale * y))
    )
    shift = 15 * torch.log(tensor(scale)).item()
    assert other.log_evidence == pytest.approx(plain.log_evidence - shift, abs=1e-3)
    found = (other.predict(moved(X + 0.03)).mean - level) / scale
    torch.testing.assert_close(plain.predict(X + 0.03).mean, found, rtol=1e-4, atol=1e-5)


def test_priors_that_do_not_fit():
    X, y = line()
    with pytest.raises(ValueError, match=r"the prior is for 2 input\(s\), but the data have 1"):
        RegressionProblem(X, y, prior_of(2, 2))
    for value in [float("nan"), float("inf")]:
        with pytest.raises(ValueError, match="the prior mean of the targets must be finite"):
            RegressionProblem(X, y, mean=value)


def test_rows_with_missing_targets_are_left_out():
    """All is that of the rows that are there, the prior too."""
    X, y = line()
    missing = y.clone()
    missing[[0, 3, 7]] = torch.nan
    kept = ~missing.isnan()
    with_holes, without = RegressionProblem(X, missing), RegressionProblem(X[kept], y[kept])
    assert (with_holes.num_missing, without.num_missing) == (3, 0)
    cube = without.prior.draw(4, 2, generator=seeded())
    assert torch.equal(with_holes.evaluate(cube), without.evaluate(cube))
    found, other = (marginalize(one, Budget(20, draws=0), generator=seeded()) for one in (with_holes, without))
    assert torch.equal(found.predict(X).mean, other.predict(X).mean)
    assert repr(found).split("\n")[-1].split() == ["rows", "dropped", "for", "a", "missing", "target", "3"]
    assert "missing" not in repr(other)
    with pytest.raises(ValueError, match=r"all 10 targets are missing \(NaN\)"):
        RegressionProblem(X, torch.full_like(y, torch.nan))
