"""The block filter against the textbook recursion, batch regression, evidence and golden numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from gp_ensembles.filters import RandomWalk, gaussian_state, predict, textbook_filter, update_block
from gp_ensembles.filters.block import update_covariance
from gp_ensembles.filters.square_root import update_square_root
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.filters.update import predict_joint
from gp_ensembles.numerics.cholesky import NumericalError
from tests.filters.oracles import in_blocks

FORMS = {"covariance": gaussian_state, "square root": square_root_state}
UPDATES = {"covariance": update_covariance, "square root": update_square_root}
EXPERTS = ["linear", "poly2", "poly3", "poly4", "rbf", "rff_se", "hsgp_se", "hsgp_matern32"]


def problem(num_experts=3, num_rows=23, num_features=6, missing=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    Phi = torch.randn(num_experts, num_rows, num_features, generator=g, dtype=torch.float64)
    y = torch.randn(num_rows, generator=g, dtype=torch.float64)
    y[list(missing)] = torch.nan
    noise = 0.1 + torch.rand(num_experts, generator=g, dtype=torch.float64)
    prior = 0.5 + torch.rand(num_experts, generator=g, dtype=torch.float64)
    return Phi, y, noise, prior


def walks(num_experts, num_features):
    mixed = torch.zeros(num_experts, 1, dtype=torch.float64)
    mixed[0] = 1e-2
    per_feature = torch.linspace(0, 0.1, num_experts * num_features, dtype=torch.float64)
    return {"static": None, "mixed": mixed, "per feature": per_feature.reshape(num_experts, num_features)}


def walking(q):
    return None if q is None else RandomWalk(q)


def run(state, Phi, y, noise, walk, sizes):
    def learn(state, rows):
        return update_block(state, Phi[..., rows, :], y[rows], walking(walk), noise)

    return in_blocks(learn, state, sizes)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    num_rows=st.integers(1, 12),
    num_features=st.integers(1, 9),
    log_noise=st.floats(-9, 4),
    log_walk=st.floats(-8, 1),
    missing=st.sets(st.integers(0, 11)),
)
def test_block_equals_textbook_for_any_sizes(seed, num_rows, num_features, log_noise, log_walk, missing):
    Phi, y, noise, prior = problem(2, num_rows, num_features, [m for m in missing if m < num_rows], seed)
    noise = noise * 10**log_noise
    walk = torch.tensor([[0.0], [10**log_walk]], dtype=torch.float64)
    reference, steps = textbook_filter(gaussian_state(prior, num_features), Phi, y, noise, walk)
    for form in FORMS.values():
        state, got = update_block(form(prior, num_features), Phi, y, RandomWalk(walk), noise)
        scale = 1 + steps.mean.abs()
        # With more rows than features and tiny noise the recursion itself loses digits to the prior's scale.
        tolerance = 1e-9 * max(1.0, 1e-4 / 10**log_noise)
        assert bool(((got.mean - steps.mean).abs() <= tolerance * scale).all())
        torch.testing.assert_close(got.variance, steps.variance, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(state.covariance, reference.covariance, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", FORMS)
def test_static_filter_is_batch_regression(form):
    Phi, y, noise, prior = problem(missing=(3, 4))
    state, _ = update_block(FORMS[form](prior, 6), Phi, y, None, noise)
    seen = ~torch.isnan(y)
    for m in range(3):
        design, target = Phi[m, seen].numpy(), y[seen].numpy()
        precision = design.T @ design / float(noise[m]) + np.eye(6) / float(prior[m])
        covariance = np.linalg.inv(precision)
        np.testing.assert_allclose(state.covariance[m], covariance, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.mean[m], covariance @ design.T @ target / float(noise[m]), rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("walk", ["static", "mixed", "per feature"])
def test_one_step_densities_sum_to_the_joint_density(form, walk):
    Phi, y, noise, prior = problem(missing=(2, 9))
    q = walks(3, 6)[walk]
    _, steps = update_block(FORMS[form](prior, 6), Phi, y, walking(q), noise)
    seen = (~torch.isnan(y)).numpy()
    times = np.arange(1, len(y) + 1)
    for m in range(3):
        design = Phi[m].numpy()
        covariance = float(prior[m]) * design @ design.T + float(noise[m]) * np.eye(len(y))
        if q is not None:
            weighted = design * q[m].numpy()
            covariance += np.minimum.outer(times, times) * (weighted @ design.T)
        joint = multivariate_normal(cov=covariance[np.ix_(seen, seen)]).logpdf(y.numpy()[seen])
        assert float(steps.log_prob[m].nansum()) == pytest.approx(joint, rel=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("missing", [(), (1,)], ids=str)
def test_gradients_through_the_stream(form, missing):
    Phi, y, noise, prior = problem(2, 7, 3, missing)

    def total(log_noise, log_prior, log_walk, features):
        state = FORMS[form](log_prior.exp(), 3)
        value = 0.0
        for rows in (slice(0, 4), slice(4, 7)):
            walk = log_walk.exp().unsqueeze(-1)
            state, steps = UPDATES[form](state, features[:, rows], y[rows], log_noise.exp(), walk)
            value = value + steps.log_prob.nansum() + steps.mean.square().sum()
        return value

    walk = torch.full((2,), -2.0, dtype=torch.float64)
    inputs = tuple(v.requires_grad_() for v in (noise.log(), prior.log(), walk, Phi))
    assert torch.autograd.gradcheck(total, inputs)


def test_hessian_through_the_stream():
    Phi, y, noise, prior = problem(1, 8, 3)

    def total(vector):
        state = gaussian_state(vector[:1].exp(), 3)
        state, first = update_block(state, Phi[:, :5], y[:5], None, vector[1:2].exp())
        state, second = update_block(state, Phi[:, 5:], y[5:], None, vector[1:2].exp())
        return first.log_prob.sum() + second.log_prob.sum()

    point, step = torch.cat([prior.log(), noise.log()]), 1e-4
    hessian = torch.func.hessian(total)(point)
    for i, axis in enumerate(step * torch.eye(2, dtype=torch.float64)):
        gradient = torch.func.grad(total)(point + axis) - torch.func.grad(total)(point - axis)
        torch.testing.assert_close(hessian[i], gradient / (2 * step), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("place", [("golden",), ("shared", "golden", "doebe")], ids=["synthetic", "elevators"])
def test_golden(place, name, request):
    folder = request.getfixturevalue(place[0]).joinpath(*place[1:])
    numbers = np.load(folder / f"expert_{name}.npz")
    data = np.load(next(folder.glob("data_*.npz")))
    y = torch.as_tensor(data["y"])
    Phi, Phi_new = torch.as_tensor(numbers["phi"]), torch.as_tensor(numbers["phi_new"])
    noise, prior = torch.as_tensor(numbers["var_eps"]), torch.as_tensor(numbers["var_theta"])
    for regime in ("static", "dynamic"):
        size = float(numbers[f"{regime}_var_rw"])
        walk = torch.tensor([size], dtype=torch.float64) if size else None
        for form in FORMS.values():
            state, steps = run(form(prior, Phi.shape[-1]), Phi, y, noise, walk, [64] * (len(y) // 64) + [len(y) % 64])
            for got, key, sign in ((steps[0], "mean", 1), (steps[1], "var", 1), (steps[2], "nll", -1)):
                np.testing.assert_allclose(sign * got, numbers[f"{regime}_{key}"], rtol=1e-8, atol=1e-9)
            alone = predict(state, Phi_new, walking(walk), noise)
            mean, covariance = predict_joint(state, Phi_new, walking(walk), noise)
            found = (state.mean, state.covariance, alone.mean, mean, covariance)
            keys = ("final_mean", "final_cov", "new_mean", "new_mean", "new_cov")
            for got, key in zip(found, keys, strict=True):
                np.testing.assert_allclose(got, numbers[f"{regime}_{key}"], rtol=1e-8, atol=1e-9)
            torch.testing.assert_close(alone.variance, covariance.diagonal(), rtol=1e-8, atol=1e-9)


def test_a_failure_names_the_expert_and_the_step():
    Phi, y, noise, prior = problem()
    noise = noise.clone()
    noise[1] = -50.0
    with pytest.raises(NumericalError, match="step 1 of expert 1"):
        update_block(gaussian_state(prior, 6), Phi, y, None, noise)


def test_vmap_over_targets_equals_a_loop():
    Phi, y, noise, prior = problem()
    many = torch.stack([y, y + 1, -y])
    start = gaussian_state(prior, 6)
    batched = torch.func.vmap(lambda target: update_block(start, Phi, target, None, noise)[0].mean)(many)
    for target, mean in zip(many, batched, strict=True):
        torch.testing.assert_close(mean, update_block(start, Phi, target, None, noise)[0].mean)
