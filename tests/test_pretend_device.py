"""The stand-in device gives the host's numbers, and refuses what CUDA refuses."""

import copy
import io

import pytest
import torch
from torch import nn

from tests.pretend_device import DEVICE, OnDevice, pretend_device


@pytest.fixture
def X(generator):
    return torch.randn(4, 3, generator=generator, dtype=torch.float64)


FACTORIES = {
    "zeros": lambda: torch.zeros(2, device="cuda"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device=DEVICE),
    "as_tensor": lambda: torch.as_tensor([1, 2], device="cuda:0"),
    "arange": lambda: torch.arange(3, device="cuda"),
    "to": lambda: torch.ones(2).to("cuda"),
    "to with dtype": lambda: torch.ones(2).to(DEVICE, torch.float64),
    "cuda": lambda: torch.ones(2).cuda(),
    "new_zeros": lambda: torch.ones(2, device="cuda").new_zeros(3),
    "new_tensor": lambda: torch.ones(2, device="cuda").new_tensor([3.0]),
    "rand": lambda: torch.rand(2, device="cuda"),
    "module": lambda: nn.Linear(2, 2).to("cuda").weight,
    "copy": lambda: copy.deepcopy(nn.Linear(2, 2).to("cuda")).bias,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_what_is_made_there_is_there(name):
    with pretend_device():
        made = FACTORIES[name]()
        assert isinstance(made, OnDevice)
        assert (made.device, made.is_cuda, made.is_cpu, made.is_meta) == (DEVICE, True, False, False)
        assert not isinstance(made.cpu(), OnDevice)
        assert made.cpu().device.type == "cpu"


NUMBERS = {
    "arithmetic": lambda X: (2 - X / 3).exp().sum(0),
    "product": lambda X: X @ X.mT,
    "reductions": lambda X: torch.stack([X.logsumexp(-1), X.amax(-1), X.std(-1)]),
    "Cholesky": lambda X: torch.linalg.cholesky_ex(X.mT @ X)[0],
    "quantile": lambda X: X.quantile(0.3, dim=0),
    "index": lambda X: X[[2, 0], 1:],
    "mask": lambda X: X[X > 0],
    "written rows": lambda X: X.clone().index_put((torch.tensor([1], device=X.device),), X[:1]),
    "vmap": lambda X: torch.func.vmap(lambda row: row * X.new_ones(3) + torch.zeros(3, device=X.device))(X),
    "gradient": lambda X: torch.func.grad(lambda x: (x**3).sum())(X),
    "out": lambda X: torch.mul(X, 2, out=torch.empty_like(X)),
    "numbers in operators": lambda X: X + torch.tensor(2.0, dtype=torch.float64, device="cpu"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_the_host(name, X):
    expected = NUMBERS[name](X)
    with pretend_device():
        found = NUMBERS[name](X.to("cuda"))
        assert isinstance(found, OnDevice)
        assert torch.equal(found.cpu(), expected)


def test_in_place_on_a_view_changes_what_it_views(X):
    with pretend_device():
        there = X.to("cuda")
        there[:, 0].fill_(7.0)
        there[1] = torch.zeros(3, dtype=torch.float64)  # from the host, which CUDA copies
        expected = X.clone()
        expected[:, 0], expected[1] = 7.0, 0.0
        assert torch.equal(there.cpu(), expected)


def test_a_parameter_is_given_other_data(X):
    with pretend_device():
        weight = nn.Parameter(torch.ones(3, device="cuda"))
        weight.data = X.to("cuda")
        assert weight.shape == X.shape
        assert torch.equal((2 * weight[:, 1]).detach().cpu(), 2 * X[:, 1])


def test_gradients_of_parameters(X):
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (X @ weight).square().sum().backward()
    with pretend_device():
        there = torch.ones(3, dtype=torch.float64, device="cuda", requires_grad=True)
        (X.to("cuda") @ there).square().sum().backward()
        assert isinstance(there.grad, OnDevice)
        assert torch.equal(there.grad.cpu(), weight.grad)


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


def test_a_file_is_read_onto_the_host(X):
    file = io.BytesIO()
    with pretend_device():
        torch.save({"X": X.to("cuda")}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu", weights_only=True)["X"], X)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nothing_is_left_behind():
    with pretend_device(free_bytes=5, all_bytes=7):
        assert (torch.cuda.device_count(), torch.cuda.mem_get_info()) == (1, (5, 7))
    assert torch.cuda.device_count() == 0
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
