"""The prior by its cube: quantiles, densities, Nyquist frequencies, stick breaking, draws, misuse."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gp_ensembles.papers.quadrature import Hyperprior
from gp_ensembles.papers.quadrature import prior as defaults
from gp_ensembles.papers.quadrature.prior import EDGE, HalfNormal, LogNormal, Normal, fixed, inferred
from tests.papers.quadrature.cases import flatten, seeded, tensor


def prior_of(num_inputs, max_components, **choices):
    means = HalfNormal(tensor(2.0, 3.0, 5.0)[:num_inputs])
    scales = LogNormal(tensor(0.0, -0.5, 1.0)[:num_inputs], tensor(0.35, 0.2, 0.6)[:num_inputs])
    return Hyperprior(means, scales, max_components, **choices)


def cube_of(prior, components, count, seed):
    """Independent uniform points, with rubbish in the columns that n components do not use."""
    rng = np.random.default_rng(seed)
    rubbish = torch.tensor(rng.uniform(size=(count, prior.num_columns)))
    columns = prior.active_columns(components)
    rubbish[:, columns] = torch.tensor(rng.uniform(size=(count, len(columns)))).clamp(EDGE, 1 - EDGE)
    rubbish[:, 0] = components
    return rubbish


MARGINALS = [
    (HalfNormal(tensor(2.0)), stats.halfnorm(scale=2.0)),
    (Normal(tensor(3.0)), stats.norm(0.0, 3.0)),
    (LogNormal(tensor(0.7), tensor(0.35)), stats.lognorm(0.35, scale=np.exp(0.7))),
]


def test_marginals_against_scipy():
    for prior, expected in MARGINALS:
        u = np.concatenate([[EDGE, 1 - EDGE], np.linspace(0.001, 0.999, 41)])
        value = prior.icdf(torch.tensor(u).unsqueeze(-1))
        np.testing.assert_allclose(value.squeeze(-1), expected.ppf(u), rtol=1e-9)
        probability = torch.tensor(u[2:]).unsqueeze(-1).requires_grad_()
        assert torch.autograd.gradcheck(prior.icdf, (probability,))
        (slope,) = torch.autograd.grad(prior.icdf(probability).sum(), probability)
        np.testing.assert_allclose(slope.log(), -expected.logpdf(value[2:]), rtol=1e-8, atol=1e-8)


def test_golden_quantiles_and_values_by_hand(archive):
    data = archive("maskerade_prior")
    u = data["u"].unsqueeze(-1)
    half, log = HalfNormal(tensor(2.0)).icdf(u), LogNormal(tensor(0.0), tensor(0.35)).icdf(u)
    np.testing.assert_allclose(half.squeeze(-1), data["halfnormal_ppf_scale2"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(log.squeeze(-1), data["lognormal_ppf_loc0_scale0.35"], rtol=1e-12)
    one = tensor(1.0)
    assert HalfNormal(2 * one).standardize(3 * one).item() == 1.5
    assert Normal(2 * one).standardize(3 * one).item() == 1.5
    assert LogNormal(one, 2 * one).standardize((3 * one).exp()).item() == pytest.approx(1.0)


@pytest.fixture(params=["even", "uneven", "even_0_48", "grid3"])
def golden_inputs(archive, request):
    data, name = archive("maskerade_prior"), request.param
    X = data[f"x_{name}"]
    return X.reshape(len(X), -1), {key.removesuffix(f"_{name}"): data[key] for key in data if key.endswith(name)}


def test_the_golden_priors_of_the_paper(golden_inputs):
    X, expected = golden_inputs
    nyquist = defaults.mean_spacing_nyquist(X)
    np.testing.assert_allclose(nyquist, expected["nyquist_paper"], rtol=1e-12)
    scales = defaults.nyquist_scales(X, nyquist)
    np.testing.assert_allclose(scales.location, expected["paper_lognormal_loc"], rtol=1e-12)
    np.testing.assert_allclose(scales.scale, expected["paper_lognormal_scale"], rtol=1e-12)
    if X.shape[1] == 1:
        prior = defaults.paper_prior(X, X.sum(-1).sin())
        np.testing.assert_allclose(prior.means.scale, expected["paper_mean_scale"], rtol=1e-12)
        assert torch.equal(prior.scales.scale, scales.scale)


def test_the_golden_nyquist_frequencies_of_the_smallest_gaps(golden_inputs):
    """The public code takes one Nth of one for the least gap, where inputs have a range: here one Nth of the range."""
    X, expected = golden_inputs
    found, extent = defaults.smallest_gap_nyquist(X), defaults.input_range(X).numpy()
    theirs = expected["nyquist_code"]
    unbounded = np.array([0.5 / np.diff(np.unique(x)).min() for x in X.T.numpy()])
    np.testing.assert_allclose(found, np.minimum(unbounded, 0.5 * len(X) / extent), rtol=1e-12)
    np.testing.assert_allclose(np.minimum(unbounded, 0.5 * len(X)), theirs, rtol=1e-12)
    same = np.isclose(extent, 1.0) | (unbounded < 0.5 * len(X) / np.maximum(extent, 1.0))
    np.testing.assert_allclose(found[same], theirs[same], rtol=1e-12)


NYQUIST = (defaults.mean_spacing_nyquist, defaults.smallest_gap_nyquist, defaults.grid_nyquist)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(-10, 10))
def test_nyquist_frequencies_have_the_unit_of_one_over_the_inputs(seed, unit, origin):
    rng = np.random.default_rng(seed)
    table = torch.tensor(rng.uniform(size=(20, 2)))
    table[:, 1] = torch.tensor(rng.integers(0, 5, 20) / 4.0)
    table[:2, 1] = tensor(0.0, 1.0)
    for rule, count in zip(NYQUIST, (2, 2, 1), strict=True):
        X, moved = table[:, :count], unit * (table[:, :count] + origin)
        torch.testing.assert_close(unit * rule(moved), rule(X), rtol=1e-6, atol=0)
        shuffled = X[torch.tensor(rng.permutation(20))]
        torch.testing.assert_close(rule(shuffled), rule(X), rtol=1e-12, atol=0)
        scales, small = defaults.nyquist_scales(moved, rule(moved)), defaults.nyquist_scales(X, rule(X))
        torch.testing.assert_close(scales.location, small.location - np.log(unit), rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(scales.scale, small.scale, rtol=1e-5, atol=1e-6)


def test_grids_with_gaps_have_the_nyquist_frequency_of_the_grid():
    rng = np.random.default_rng(0)
    full = torch.arange(100, dtype=torch.float64).unsqueeze(-1) / 12.0 + 1949.0
    for X in (full, full[torch.tensor(np.sort(rng.permutation(100)[:60]))], torch.cat([full, full[:7]])):
        assert defaults.grid_nyquist(X).item() == pytest.approx(6.0, rel=1e-6)
    assert defaults.mean_spacing_nyquist(full).item() == pytest.approx(6.0)
    uneven = torch.tensor(rng.uniform(size=(60, 1)))
    torch.testing.assert_close(defaults.grid_nyquist(uneven), defaults.mean_spacing_nyquist(uneven))
    coincidence = torch.cat([full, full[:1] + 1e-4])  # two rows by chance next to one another are no grid
    torch.testing.assert_close(defaults.grid_nyquist(coincidence), defaults.mean_spacing_nyquist(coincidence))


def test_the_golden_map_from_the_cube(archive):
    data = archive("maskerade_library_extras")
    for num_inputs, components in product([1, 3], [1, 2, 3, 5]):
        u, expected = (data[f"{key}_D{num_inputs}_n{components}"] for key in ("u", "theta"))
        loc, width, scale = (data[f"{key}_D{num_inputs}"] for key in ("ln_loc", "ln_scale", "mean_scale"))
        prior = Hyperprior(HalfNormal(scale), LogNormal(loc, width), max_components=5)
        mixtures = prior.mixtures(prior.embed(u, components))
        assert mixtures.num_components.tolist() == [components] * len(u)
        np.testing.assert_allclose(flatten(mixtures.trim()), expected, rtol=1e-11, atol=1e-13)


def log_density(mixture, widths, locations, deviations):
    """The prior's log density of one mixture given its number of components, by scipy."""
    present = mixture.weights != 0
    w, m, s = (np.asarray(part[present]) for part in tuple(mixture))
    value = stats.halfnorm(scale=widths).logpdf(m).sum()
    value += stats.lognorm(np.asarray(deviations), scale=np.exp(locations)).logpdf(s).sum()
    return value + (stats.dirichlet.logpdf(w / w.sum(), np.ones(len(w))) if len(w) > 1 else 0.0)


@pytest.mark.parametrize("components", [1, 2, 4])
def test_the_map_from_the_cube_has_the_prior_for_its_density(components):
    """One over the Jacobian determinant of the cube's map (the last weight is what the others leave)."""
    prior = prior_of(2, 4)
    columns = prior.active_columns(components)

    def free(points):
        mixture = prior.mixtures(prior.embed(points, components))
        parts = mixture.weights[: components - 1], mixture.means[:components], mixture.scales[:components]
        return torch.cat([part.flatten() for part in parts])

    for row in cube_of(prior, components, 3, 7):
        jacobian = torch.autograd.functional.jacobian(free, row[columns])
        expected = log_density(prior.mixtures(row), [2.0, 3.0], [0.0, -0.5], [0.35, 0.2])
        assert -torch.linalg.slogdet(jacobian).logabsdet.item() == pytest.approx(expected, abs=1e-8)


CHOICES = {
    "fixed": {},
    "noise": {"noise": inferred(1e-3, 1.0)},
    "both": {"noise": inferred(1e-3, 1.0), "outputscale": inferred(1.0, 0.5)},
    "output scale": {"outputscale": inferred(2.0, 0.1)},
}


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from(list(CHOICES)),
    st.sampled_from(["inside", "lower", "upper"]),
)
def test_every_point_of_the_cube_is_legal(seed, num_inputs, max_components, name, where):
    prior = prior_of(num_inputs, max_components, **CHOICES[name])
    rng = np.random.default_rng(seed)
    lower, upper = prior.bounds
    assert lower.shape == upper.shape == (prior.num_columns,)
    share = torch.tensor(rng.uniform(size=(7, prior.num_columns)))
    share = {"inside": share, "lower": 0.0 * share, "upper": 0.0 * share + 1.0}[where]
    cube = lower + share * (upper - lower)
    cube[:, 0] = torch.tensor(rng.integers(1, max_components + 1, 7))
    counts = prior.num_components(cube)
    assert counts.tolist() == cube[:, 0].tolist()
    weights, means, scales = prior.mixtures(cube)
    present = torch.arange(max_components) < counts.unsqueeze(-1)
    assert torch.equal(weights > 0, present)
    torch.testing.assert_close(weights.sum(-1), torch.ones(7).double(), rtol=0, atol=1e-14)
    assert bool(((means >= 0) & means.isfinite() & ((means > 0) == present.unsqueeze(-1))).all())
    assert bool(((scales >= 0) & scales.isfinite() & ((scales > 0) == present.unsqueeze(-1))).all())
    values = prior.hyperparameters(cube)
    for scalar in (values.outputscale, values.noise):
        assert scalar.shape == (7,)
        assert bool(((scalar > 0) & scalar.isfinite()).all())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 5), st.sampled_from(list(CHOICES)), st.data())
def test_columns_that_are_not_used_do_not_matter(seed, num_inputs, max_components, name, data):
    prior = prior_of(num_inputs, max_components, **CHOICES[name])
    components = data.draw(st.integers(1, max_components))
    cube = cube_of(prior, components, 4, seed)
    columns = prior.active_columns(components)
    assert len(columns) == components * (1 + 2 * num_inputs) - 1 + prior.num_scalars
    assert len(set(columns.tolist()) - {0}) == len(columns)
    plain = prior.embed(cube[:, columns], components)

    def everything(cube):
        mixtures, outputscale, noise = prior.hyperparameters(cube)
        return torch.cat([flatten(mixtures), outputscale.unsqueeze(-1), noise.unsqueeze(-1)], -1)

    assert torch.equal(everything(cube), everything(plain))
    for column in columns.tolist():  # every column that is used does matter
        moved = cube.clone()
        moved[:, column] = 0.5 * moved[:, column] + 0.25 * (moved[:, column] < 0.5)
        assert bool((everything(moved) != everything(cube)).any(-1).all())


def test_derivatives_of_the_map():
    prior = prior_of(2, 3, noise=inferred(0.01, 0.5))
    for components in (1, 2, 3):
        cube = cube_of(prior, components, 2, components).clamp(0.05, None)
        cube[:, 1:] = cube[:, 1:].clamp(0.05, 0.95)
        cube[:, 0] = components

        def everything(points, components=components):
            values = prior.hyperparameters(prior.embed(points, components))
            return torch.cat([flatten(values.mixtures), values.noise.unsqueeze(-1)], -1)

        points = cube[:, prior.active_columns(components)].requires_grad_()
        assert torch.autograd.gradcheck(everything, (points,), atol=1e-4)
    rows = torch.cat([cube_of(prior, n, 2, n) for n in (1, 2, 3)]).requires_grad_()
    (slope,) = torch.autograd.grad(flatten(prior.mixtures(rows)).square().sum(), rows)
    assert bool(slope.isfinite().all())


def test_what_is_inferred_is_log_normal():
    prior = prior_of(1, 2, noise=inferred(1e-3, 1.5), outputscale=inferred(2.0, 0.5))
    cube = cube_of(prior, 2, 2000, 0)
    values = prior.hyperparameters(cube)
    assert stats.kstest(values.outputscale, stats.lognorm(0.5, scale=2.0).cdf).pvalue > 0.01
    assert stats.kstest(values.noise, stats.lognorm(1.5, scale=1e-3).cdf).pvalue > 0.01
    z = prior.scalars(cube)
    torch.testing.assert_close(values.outputscale, 2.0 * (0.5 * z[:, 0]).exp())
    torch.testing.assert_close(values.noise, 1e-3 * (1.5 * z[:, 1]).exp())
    known = prior_of(1, 2, noise=fixed(0.25), outputscale=fixed(3.0))
    values = known.hyperparameters(cube_of(known, 1, 3, 0))
    torch.testing.assert_close(values.noise, 0.25 * torch.ones(3).double())
    torch.testing.assert_close(values.outputscale, 3.0 * torch.ones(3).double())


def test_draws_are_of_low_discrepancy_and_of_the_number_of_components():
    prior = prior_of(2, 4, noise=inferred(1e-3, 1.0))
    for components in (1, 2, 4):
        cube = prior.draw(256, components, generator=seeded(components))
        assert cube.shape == (256, prior.num_columns)
        assert bool((cube[:, 0] == components).all())
        assert prior.mixtures(cube).num_components.unique().tolist() == [components]
        points = cube[:, prior.active_columns(components)]
        assert float(points.min()) >= EDGE
        assert float(points.max()) <= 1 - EDGE
        # one point in every 256th of each axis: a net, not independent draws
        for column in points.T:
            assert sorted((column * 256).floor().int().tolist()) == list(range(256))


def test_draws_of_numbers_that_the_prior_does_not_know():
    for components in [0, 4, -1]:
        with pytest.raises(ValueError, match=f"1 to 3 components, not {components}"):
            prior_of(1, 3).draw(2, components)
    for count in [0, -1]:
        with pytest.raises(ValueError):
            prior_of(1, 3).draw(count, 1)


BAD_PRIORS = {
    "no component": (lambda: prior_of(1, 0), "max_components must be at least 1"),
    "two numbers of inputs": (
        lambda: Hyperprior(HalfNormal(tensor(1.0)), LogNormal(tensor(0.0, 0.0), tensor(1.0, 1.0)), 2),
        r"shapes \(1,\) and \(2,\)",
    ),
    "numbers": (
        lambda: Hyperprior(HalfNormal(tensor(1.0)[0]), LogNormal(tensor(0.0)[0], tensor(1.0)[0]), 2),
        "one number per input",
    ),
    "p(n) too short": (lambda: prior_of(1, 3, log_prob_components=tensor(0.0, 0.0)), r"n = 1\.\.3"),
    "p(n) zero": (lambda: prior_of(1, 2, log_prob_components=tensor(0.0, -np.inf)), "positive finite probability"),
    "fixed": (lambda: fixed(np.nan), "must be positive and finite, got nan"),
    "inferred": (lambda: inferred(1.0, 0.0), "positive finite median and log_sd, got 1.0 and 0.0"),
}


def test_bad_priors_are_refused():
    for make, message in BAD_PRIORS.values():
        with pytest.raises(ValueError, match=message):
            make()
