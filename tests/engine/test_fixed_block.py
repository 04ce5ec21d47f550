"""Blocks in fixed memory on the CPU, where no graph is recorded; their numbers are held by the table of plans."""

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch.utils._python_dispatch import TorchDispatchMode

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.recorded import FixedBlock, Progress, check_recordable
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.filters import ExponentialForgetting, RandomWalk, gaussian_state
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare, OnlineNewton
from gp_ensembles.meta_learners.base import MetaLearner
from tests.fleet.instances import ENSEMBLES, linear
from tests.pretend_device import pretend_device
from tests.pretend_graphs import pretend_graphs


@pytest.mark.parametrize(
    ("experts", "rule", "message"),
    [
        (lambda: [GaussianExpert(linear())], OnlineNewton(), "OnlineNewton cannot be the rule of a graph"),
        (
            lambda: [GaussianExpert(linear(), transition=ExponentialForgetting(0.9))],
            FixedShare(),
            "reads numbers while it learns",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused(experts, rule, message):
    online = OnlineEnsemble(Ensemble(experts(), rule))
    with pytest.raises(TypeError, match=message):
        check_recordable(online.ensemble, online.state)


VIEWS = {
    *("view", "unsqueeze", "squeeze", "expand", "permute", "transpose", "select", "slice", "unbind", "detach", "split"),
    *("_unsafe_view", "diagonal", "alias", "unsafe_split", "split_with_sizes"),
}


class Operators(TorchDispatchMode):
    """Names of all operators that a GPU would have to launch."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def launches(ensemble: Ensemble, num_rows: int, has_gaps: bool) -> list[str]:
    """Operators of a block on the meta device, where reading a number is an error."""
    ensemble = ensemble.to("meta")
    none = torch.zeros((), dtype=torch.int64, device="meta")
    progress = Progress(none.bool(), none)
    block = FixedBlock(ensemble, ensemble.init()._replace(quarantine=None), num_rows, has_gaps, progress)
    with Operators() as counted:
        block.run()
    return counted.names


def of_size(num_experts: int, num_features: int, rule: MetaLearner) -> Ensemble:
    kernels = [RBFKernel().double() for _ in range(num_experts)]
    generator = torch.Generator().manual_seed(0)
    features = RandomFourierFeatures.from_kernel(stack_kernels(kernels), 2, num_features, generator=generator)
    static = GaussianExpert(features, initial_state=gaussian_state)
    moving = GaussianExpert(features, transition=RandomWalk(1e-3), initial_state=gaussian_state)
    return Ensemble([static, moving], rule)


@pytest.mark.parametrize("has_gaps", [pytest.param(False, marks=pytest.mark.slow), True])
def test_launches_depend_neither_on_experts_nor_on_features_nor_on_rows(has_gaps):
    few = launches(of_size(3, 10, BayesianModelAveraging()), 8, has_gaps)
    assert few == launches(of_size(300, 40, BayesianModelAveraging()), 64, has_gaps)
    assert len(few) < 200


@pytest.mark.parametrize(("kind", "has_gaps"), [("averaging", True), ("switching", False), ("one expert", True)])
def test_nothing_waits_or_copies_from_the_host(kind, has_gaps):
    """What a CUDA graph cannot record: numbers read, shapes that depend on numbers, tensors made of plain numbers."""
    ensemble = ENSEMBLES[kind]()
    for expert in ensemble.experts:
        expert.initial_state = gaussian_state  # which form is safe is asked of numbers
    forbidden = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "lift_fresh"}
    assert not forbidden & set(launches(ensemble, 8, has_gaps))


def test_a_graph_refuses_what_waits():
    with pretend_device(), pretend_graphs():
        numbers = torch.ones(3, device="cuda")
        for waits in (
            lambda: numbers.sum().item(),
            lambda: numbers.cpu(),
            lambda: torch.tensor([1.0]).to("cuda"),
            lambda: numbers[numbers > 0],
        ):
            with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                waits()
