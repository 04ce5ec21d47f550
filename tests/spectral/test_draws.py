"""Base draws: distribution, structure, reproducibility."""

import pytest
import torch

from gp_ensembles.spectral import IIDDraws, OrthogonalDraws, SobolDraws
from gp_ensembles.spectral.frequencies import FrequencyDraws, draw_batch

DRAWS = [IIDDraws(), OrthogonalDraws(), SobolDraws()]
each = pytest.mark.parametrize("draws", DRAWS, ids=lambda draws: type(draws).__name__)


@each
def test_marginals(draws: FrequencyDraws, generator: torch.Generator, wrong_default_dtype: None) -> None:
    normals, uniforms = draws.draw(20000, 3, generator=generator)
    assert normals.dtype == uniforms.dtype == torch.float64
    assert normals.shape == (20000, 3)
    assert bool(((uniforms > 0) & (uniforms < 1)).all())
    grid = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.5], dtype=torch.float64)
    empirical = (normals[..., None] < grid).double().mean(0)
    torch.testing.assert_close(empirical, torch.special.ndtr(grid).expand(3, -1), rtol=0, atol=0.02)
    assert abs(float(uniforms.mean()) - 0.5) < 0.02
    covariance = normals.T @ normals / 20000
    torch.testing.assert_close(covariance, torch.eye(3, dtype=torch.float64), rtol=0, atol=0.05)


@each
def test_reproducible_and_independent_per_expert(draws: FrequencyDraws) -> None:
    seeded = (torch.Generator().manual_seed(1) for _ in range(2))
    first, second = (draw_batch(draws, 7, 2, torch.Size([2, 3]), generator=generator) for generator in seeded)
    assert first.normals.shape == (2, 3, 7, 2)
    assert torch.equal(first.normals, second.normals)
    assert torch.equal(first.uniforms, second.uniforms)
    experts = first.normals.flatten(0, 1)
    assert not any(torch.equal(experts[i], experts[j]) for i in range(6) for j in range(i))


def test_orthogonal_blocks(generator: torch.Generator) -> None:
    normals = OrthogonalDraws().draw(7, 3, generator=generator).normals
    for block in normals.split(3):
        gram = block @ block.T
        assert float((gram - gram.diagonal().diag()).abs().max()) < 1e-12


def test_too_many_columns_for_sobol() -> None:
    with pytest.raises(ValueError, match="use IIDDraws"):
        SobolDraws().draw(2, 30000)
