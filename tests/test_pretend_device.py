"""The stand-in device gives the host's numbers, and refuses what CUDA refuses."""

import pytest
import torch
from torch import nn

from tests.pretend_device import pretend_device


@pytest.fixture
def X(generator):
    return torch.randn(4, 3, generator=generator, dtype=torch.float64)


MIXED = {
    "sum": (lambda here, there: there + here, "same device"),
    "product": (lambda here, there: there @ here.mT, "same device"),
    "side by side": (lambda here, there: torch.cat([here, there]), "same device"),
    "a number side by side": (lambda here, there: torch.stack([there[0, 0], here[0, 0]]), "same device"),
    "into the host": (lambda here, there: here.add_(there), "same device"),
    "into a number": (lambda here, there: here.sum().add_(there.sum()), "same device"),
    "choice": (lambda here, there: torch.where(here > 0, there, 0.0), "same device"),
    "index": (lambda here, there: here[there[:, 0].argsort()], "on the host"),
    "values": (lambda here, there: there.index_put((torch.tensor([0]),), here[:1]), "same device"),
    "in vmap": (lambda here, there: torch.func.vmap(lambda row: row + here[0])(there), "same device"),
    "module": (lambda here, there: nn.Linear(3, 1).double()(there), "same device"),
    "generator": (lambda here, there: there.clone().normal_(generator=torch.Generator()), "generator"),
    "numpy": (lambda here, there: there.numpy(), "numpy"),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_cuda_refuses_is_refused(name, X):
    mix, words = MIXED[name]
    with pretend_device():
        here, there = X.clone(), X.to("cuda")
        with pytest.raises((RuntimeError, TypeError), match=words):
            mix(here, there)
    mix(X.clone(), X.clone())  # where all is on the host nothing is refused


def test_reads_of_the_host_are_counted(X):
    with pretend_device() as reads:
        there = X.to("cuda")
        assert (reads.single, reads.lists, reads.copies) == (0, 0, 0)
        assert bool((there == there).all())
        assert float(there[0, 0]) == there[0, 0].item() == X[0, 0]
        assert there.tolist() == X.tolist()
        assert torch.equal(there.cpu(), X)
        assert (reads.single, reads.lists, reads.copies) == (3, 1, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nothing_is_left_behind():
    with pretend_device(free_bytes=5, all_bytes=7):
        assert (torch.cuda.device_count(), torch.cuda.mem_get_info()) == (1, (5, 7))
    assert torch.cuda.device_count() == 0
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
