"""What experts whose likelihood is not Gaussian cost beside Gaussian ones on the same features.

    python -m benchmarks.price_of_laplace

The whole of ``OnlineEnsemble.observe``, CPU times of one thread; what is compared takes turns.
"""

import torch
from torch import Tensor

from benchmarks.bench_laplace import features, stream
from benchmarks.price_of_block import Ratio, best_of
from gp_ensembles.ensembles import Ensemble, OnlineEnsemble
from gp_ensembles.experts import Expert, GaussianExpert
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.latent_update import MomentMatchingUpdate
from gp_ensembles.likelihoods import LogisticLikelihood, MulticlassLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging

NUM_CLASSES, BLOCK_ROWS, SINGLE_ROWS = 3, 480, 60


def run(expert: Expert, X: Tensor, y: Tensor, rows_at_once: int) -> float:
    """An ensemble that has begun, and what it does with further rows."""
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    online.observe(X[:64], y[:64])
    parts = list(zip(X.split(rows_at_once), y.split(rows_at_once), strict=True))
    return lambda: [online.observe(rows, targets) for rows, targets in parts]


def ratios() -> list[Ratio]:
    """The table's rows."""
    torch.set_num_threads(1)
    found: list[Ratio] = []
    for num_experts, num_features in ((11, 30), (15, 100)):
        name, map_ = f"M={num_experts}, F={num_features}", features(num_experts, num_features)
        X, y = stream(BLOCK_ROWS)
        labels, classes = (y > 0).double(), torch.bucketize(y, torch.tensor([-0.5, 0.5], dtype=torch.float64)).double()
        logistic = LaplaceExpert(map_, LogisticLikelihood())
        moments = LaplaceExpert(map_, LogisticLikelihood(), latent_update=MomentMatchingUpdate())
        softmax = LaplaceExpert(map_, MulticlassLikelihood(NUM_CLASSES))
        for rows, how, most in ((BLOCK_ROWS, "in blocks", 3.0), (1, "one row at a time", 4.0)):
            few = BLOCK_ROWS if rows > 1 else SINGLE_ROWS
            experts = ((GaussianExpert(map_), y), (logistic, labels), (moments, labels), (softmax, classes))
            cost = best_of([run(expert, X[:few], target[:few], rows) for expert, target in experts], 5)
            binary, matched, classed = (one / cost[0] for one in cost[1:])
            found += [
                (f"{name}, {how}: two classes by Laplace over Gaussian", binary, most),
                (f"{name}, {how}: two classes by moment matching over Gaussian", matched, 2 * most),
                (f"{name}, {how}: {NUM_CLASSES} classes by Laplace, each, over Gaussian", classed / NUM_CLASSES, most),
            ]
    return found


if __name__ == "__main__":
    for what, ratio, most in ratios():
        print(f"{ratio:8.2f} {'' if most is None else f'(at most {most:.2f})':16s} {what}")
