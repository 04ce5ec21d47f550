"""Random numbers are torch's own, in its order, and come from generators of any device."""

import pytest
import torch
from torch import Tensor

from gp_ensembles.distributions.latent_mixture import LatentMixture, Response
from gp_ensembles.likelihoods import LogPoissonLikelihood
from gp_ensembles.likelihoods.predictive import GaussHermite
from gp_ensembles.numerics.draws import categorical_draws, normal_draws, permutation, uniform_draws

LIKE = torch.zeros(1, dtype=torch.float64)
WEIGHTS = torch.tensor([[0.2, 0.8], [1.0, 0.0]], dtype=torch.float64)
DRAWS = {
    "normal": lambda generator, like: normal_draws((4, 3), like, generator),
    "uniform": lambda generator, like: uniform_draws((4, 3), like, generator),
    "categories": lambda generator, like: categorical_draws(WEIGHTS.to(like), 5, generator),
    "permutation": lambda generator, like: permutation(9, generator, like.device),
}
BY_TORCH = {
    "normal": lambda generator: torch.empty(4, 3, dtype=torch.float64).normal_(generator=generator),
    "uniform": lambda generator: torch.empty(4, 3, dtype=torch.float64).uniform_(generator=generator),
    "categories": lambda generator: torch.multinomial(WEIGHTS, 5, replacement=True, generator=generator),
    "permutation": lambda generator: torch.randperm(9, generator=generator),
}


def seeded(device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(5)


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_those_of_torch(name):
    assert torch.equal(DRAWS[name](seeded(), LIKE), BY_TORCH[name](seeded()))
    torch.manual_seed(5)
    assert torch.equal(DRAWS[name](None, LIKE), BY_TORCH[name](seeded()))


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_the_host_gives_the_hosts_numbers_on_a_gpu(name, gpu):
    expected = DRAWS[name](seeded(), LIKE)
    with gpu.here():
        found = DRAWS[name](seeded(), LIKE.to("cuda"))
        assert found.is_cuda
        assert torch.equal(found.cpu(), expected)


def counts(device: str) -> LatentMixture:
    """Two experts of one likelihood, for six rows."""
    response = Response(LogPoissonLikelihood(), GaussHermite(), 2, torch.Size([2]))
    mean = torch.linspace(0, 2, 12, dtype=torch.float64, device=device).reshape(2, 6)
    return LatentMixture(torch.full_like(mean[:, 0], 0.5).log(), mean, torch.ones_like(mean), (response,))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: only its own generators are not the host's")
def test_generators_of_a_gpu():
    X = torch.arange(20, dtype=torch.float64).unsqueeze(-1)

    def draws(generator: torch.Generator, device: str) -> list[Tensor]:
        before = torch.cuda.get_rng_state(), torch.get_rng_state()
        predicted = [permutation(len(X), generator, device), counts(device).sample(4, generator=generator)]
        after = torch.cuda.get_rng_state(), torch.get_rng_state()
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        return predicted

    for where in ("cpu", "cuda"):
        for there in ("cpu", "cuda"):
            first, again = (draws(seeded(where), there) for _ in range(2))
            for one, other in zip(first, again, strict=True):
                assert one.device.type == there
                assert torch.equal(one, other)
