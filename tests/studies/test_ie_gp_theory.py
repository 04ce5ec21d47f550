"""Bounds of the IE-GP paper: attained where they are said to be, broken where theorem 2 is, and one that holds."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from studies.ie_gp import theory
from studies.ie_gp.restarts import restart_mixture, restarted_log_prob


def test_lemma_1_is_attained():
    found = theory.worst_of_lemma_1(3, 4, 40, size=30.0)
    by_hand = math.log(3) + 0.5 * 4 * (30 * 10 / 11) ** 2 + 2 * math.log1p(10)
    assert found["regret"] == pytest.approx(by_hand, rel=1e-10)
    assert found["bound"] == pytest.approx(by_hand, rel=1e-10)


def test_lemma_2_needs_the_choice_among_the_others():
    found = theory.worst_of_lemma_2(7, 1000, 3)
    by_hand = math.log(7) + 3 * math.log(6 * 999 / 3) - 996 * math.log(1 - 3 / 999)
    assert found["regret"] == pytest.approx(by_hand, rel=1e-10)
    printed = math.log(7) + 3 * math.log(1000) - 3 * math.log(3) + 3
    assert found["printed bound"] == pytest.approx(printed, rel=1e-12)
    assert found["regret"] > printed


def test_theorem_2_fails_for_experts_that_learn_all_rows_and_ever_more():
    short, long = (theory.one_constant(rows, 2.0) for rows in (60, 200))
    for found in (short, long):
        assert found["SIE-GP"] > found["theorem 2"]
        assert found["restarted"] < found["its bound"] <= found["theorem 2"] + 2 * math.log(2)
    assert (long["SIE-GP"] - short["SIE-GP"]) / 140 > 1.9  # a^2 / 2 nats per row


def test_the_mixture_is_a_sum_over_all_segmentations():
    generator = torch.Generator().manual_seed(0)
    Phi = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(5, dtype=torch.float64, generator=generator)
    stay, total = 0.7, 0.0
    for cuts in itertools.product([False, True], repeat=4):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 5]
        part = stay ** (4 - sum(cuts)) * (1 - stay) ** sum(cuts)
        for prepare, end in itertools.pairwise(edges):
            designs = [design[prepare:end].numpy() for design in Phi]
            covariances = [design @ design.T + 0.5 * np.eye(end - prepare) for design in designs]
            part *= sum(multivariate_normal(cov=cov).pdf(y[prepare:end].numpy()) for cov in covariances) / 2
        total += part
    found = restart_mixture(restarted_log_prob(Phi, y, 0.5), stay).sum()
    assert float(found) == pytest.approx(math.log(total), rel=1e-10)


def test_the_bound_of_restarts_holds_against_an_adversary_and_is_attained():
    Phi = torch.ones(2, 24, 1, dtype=torch.float64)
    found = theory.one_constant(60, 1000.0, 0.9)
    # Both kernels are one here, so the ensemble is ahead of the bound by log 2 for each of two segments.
    assert found["its bound"] - found["restarted"] == pytest.approx(2 * math.log(2), abs=1e-6)
    for seed in range(3):
        for draw in (theory.changing_function, theory.turning_waves):
            found = draw(80, 10, torch.Generator().manual_seed(seed))
            assert found["restarted"] <= found["its bound"]
    adverse = torch.zeros(0, dtype=torch.float64)  # every target lies where the mixture says it is least likely
    for t in range(24):
        tries = [torch.cat([adverse, adverse.new_tensor([value])]) for value in (-3.0, 3.0)]
        adverse = min(
            tries, key=lambda y, t=t: float(restart_mixture(restarted_log_prob(Phi[:, : t + 1], y, 1.0), 0.9)[-1])
        )
    for lengths in ([24], [12, 12], [1] * 24):
        found = theory.regrets(Phi, adverse, lengths, 1.0, 0.9)
        assert found["restarted"] <= found["its bound"] + 1e-9
