"""Methods that embed rows in two dimensions, each from rows to embeddings and the seconds it took."""

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import NamedTuple

import torch
from scipy.sparse.linalg import ArpackNoConvergence
from sklearn.decomposition import PCA, IncrementalPCA, KernelPCA
from torch import Tensor

from gp_ensembles.papers.gplvm import LatentSettings, ie_gplvm
from gp_ensembles.papers.gplvm.presets import RBF_VARIANCES
from studies.ie_gplvm import map_model
from studies.ie_gplvm.gpytorch_model import LEARNING_RATE, MINIBATCH, NUM_INDUCING, gpytorch_embedding
from studies.ie_gplvm.map_model import map_embedding
from studies.ie_gplvm.neighbors import neighbor_error
from studies.ie_gplvm.sets import LatentRows

NUM_LATENT = 2
NUM_FREQUENCIES = 50
STAY = 0.99  # of the switching variant
RANDOM_WALK_RATIO = 1e-4  # of the dynamic variant
POWERS = range(-10, 11)  # of two, of the paper's grid of widths
_MEDIAN_ROWS = 1000  # rows whose distances make the median


class Effort(NamedTuple):
    """What may be chosen of methods.

    Attributes:
        block_size: Rows that the ensembles embed at once.
        iterations: Most steps of the models of all rows at once.
    """

    block_size: int = 1
    iterations: int = 8000


class LatentTask(NamedTuple):
    """What a method is given: rows, the seed of whatever is random, and how hard to try."""

    rows: LatentRows
    seed: int
    effort: Effort


class LatentAnswer(NamedTuple):
    """What a run found.

    Attributes:
        embeddings: By reading, shape (N, 2); the ensembles can be read in two ways.
        seconds: On the wall.
        checks: What else is known, by name.
    """

    embeddings: Mapping[str, Tensor]
    seconds: float
    checks: Mapping[str, float]


class LatentMethod(NamedTuple):
    """A line of the table.

    Attributes:
        title: What it is.
        online: Whether it meets the rows one after another.
        run: Which run it is read from, a name of :data:`RUNS`.
        reading: Which embedding of that run.
        uses: Parts of :class:`Effort` that matter to it.
    """

    title: str
    online: bool
    run: str
    reading: str = "embedding"
    uses: frozenset[str] = frozenset()


def median_gamma(Y: Tensor) -> float:
    r"""The rate :math:`\gamma = 1 / (2 m)` of :math:`\exp(-\gamma \|y - y'\|^2)`, m the median squared distance.

    Over pairs of the first 1000 rows.

    Example:
        >>> median_gamma(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64, device="cpu"))
        0.125
    """
    return 0.5 / float(torch.pdist(Y[:_MEDIAN_ROWS]).square().median())


def without_umap() -> str | None:
    """Why UMAP cannot be run; ``None`` if it can."""
    return (
        None
        if find_spec("umap")
        else "it needs umap-learn, which is not installed; add it with: pip install umap-learn"
    )


def _ensemble(stay: float | None = None, walk: float = 0.0) -> Callable[[LatentTask], LatentAnswer]:
    def run(task: LatentTask) -> LatentAnswer:
        rows, first = task.rows.Y, task.rows.num_start
        clock = time.perf_counter()
        generator = torch.Generator().manual_seed(task.seed)
        settings = LatentSettings(seed=task.seed, random_walk_ratio=walk)
        sizes = rows.shape[1], NUM_LATENT, NUM_FREQUENCIES
        model = ie_gplvm(*sizes, stay=stay, settings=settings, generator=generator)
        start = model.start(rows[:first])
        start_seconds = time.perf_counter() - clock
        later = model.update(rows[first:], block_size=task.effort.block_size)
        seconds = time.perf_counter() - clock
        embeddings = {
            "embedding": torch.cat([start.embedding, later.embedding]),
            "one_space": torch.cat([start.by_expert, later.by_expert], 1)[model.best_expert],
        }
        checks = {
            "start_seconds": start_seconds,
            "best_expert": float(model.best_expert),
            "converged": float(later.converged.double().mean()),
        }
        return LatentAnswer(embeddings, seconds, checks)

    return run


def _batch(fit: Callable[[LatentTask], Tensor]) -> Callable[[LatentTask], LatentAnswer]:
    def run(task: LatentTask) -> LatentAnswer:
        clock = time.perf_counter()
        found = fit(task)
        return LatentAnswer({"embedding": found}, time.perf_counter() - clock, {})

    return run


def _pca(task: LatentTask) -> Tensor:
    Y = task.rows.Y
    return Y.new_tensor(PCA(NUM_LATENT, random_state=task.seed).fit_transform(Y.numpy()).tolist())


def _incremental_pca(task: LatentTask) -> Tensor:
    """Batches of the size of the start; all rows are then read by the last components."""
    Y, size = task.rows.Y, task.rows.num_start
    return Y.new_tensor(IncrementalPCA(NUM_LATENT, batch_size=size).fit_transform(Y.numpy()).tolist())


def _kernel_pca(task: LatentTask) -> LatentAnswer:
    """Of the paper's grid of widths the one with the lowest error, which sees the labels; seconds are its own."""
    Y, unit, found = task.rows.Y, median_gamma(task.rows.Y), list[tuple[float, Tensor, float, int]]()
    for power in POWERS:
        clock = time.perf_counter()
        model = KernelPCA(NUM_LATENT, kernel="rbf", gamma=unit / 2.0**power, random_state=task.seed)
        try:
            places = Y.new_tensor(model.fit_transform(Y.numpy()).tolist())
        except (ArpackNoConvergence, ValueError):  # where the kernel is all but the identity
            continue
        found.append((neighbor_error(places, task.rows.label), places, time.perf_counter() - clock, power))
    _, places, seconds, power = min(found, key=lambda one: one[0])
    return LatentAnswer({"embedding": places}, seconds, {"power": float(power)})


def _gplvm(task: LatentTask) -> Tensor:
    steps = min(map_model.MOST_STEPS, task.effort.iterations)
    return map_embedding(task.rows.Y, num_latent=NUM_LATENT, seed=task.seed, steps=steps)


def _bayesian_gplvm(task: LatentTask) -> Tensor:
    return gpytorch_embedding(task.rows.Y, task.effort.iterations, num_latent=NUM_LATENT, seed=task.seed)


def _umap(task: LatentTask) -> LatentAnswer:
    import umap  # type: ignore[import-not-found, import-untyped, unused-ignore]  # an optional extra

    Y, threads = task.rows.Y, torch.get_num_threads()
    clock = time.perf_counter()  # loading it is no part of the run
    try:
        found = umap.UMAP(n_components=NUM_LATENT, random_state=task.seed, n_jobs=1).fit_transform(Y.numpy())
    finally:
        torch.set_num_threads(threads)  # it leaves all threads of the machine to whoever comes next
    return LatentAnswer({"embedding": Y.new_tensor(found.tolist())}, time.perf_counter() - clock, {})


RUNS: dict[str, Callable[[LatentTask], LatentAnswer]] = {
    "ie_gplvm": _ensemble(),
    "sie_gplvm": _ensemble(stay=STAY),
    "die_gplvm": _ensemble(walk=RANDOM_WALK_RATIO),
    "pca": _batch(_pca),
    "incremental_pca": _batch(_incremental_pca),
    "kernel_pca": _kernel_pca,
    "gplvm": _batch(_gplvm),
    "bayesian_gplvm": _batch(_bayesian_gplvm),
    "umap": _umap,
}
_ENSEMBLE: Mapping[str, object] = {
    "frequencies": NUM_FREQUENCIES, "variances": list(RBF_VARIANCES), **LatentSettings()._asdict(),
}  # fmt: skip
# What else the runs depend on: a part that was made with other numbers is made again.
CONSTANTS: Mapping[str, Mapping[str, object]] = {
    "ie_gplvm": _ENSEMBLE,
    "sie_gplvm": {**_ENSEMBLE, "stay": STAY},
    "die_gplvm": {**_ENSEMBLE, "random_walk_ratio": RANDOM_WALK_RATIO},
    "kernel_pca": {"powers": list(POWERS)},
    "gplvm": {"inducing": map_model.NUM_INDUCING, "steps": map_model.MOST_STEPS},
    "bayesian_gplvm": {"inducing": NUM_INDUCING, "rate": LEARNING_RATE, "minibatch": MINIBATCH},
}
_BLOCKS = frozenset({"block_size"})
_ONE_SPACE = "the same run, all rows in the space of the expert under which they are likeliest"
_REPORTED = f"IE-GPLVM, each row as reported, searched from {LatentSettings().num_starts} neighbors (paper: one)"
METHODS = {
    "ie_gplvm": LatentMethod(_REPORTED, True, "ie_gplvm", uses=_BLOCKS),
    "ie_gplvm_one_space": LatentMethod(_ONE_SPACE, True, "ie_gplvm", "one_space", _BLOCKS),
    "sie_gplvm": LatentMethod(f"switching weights, staying with probability {STAY}", True, "sie_gplvm", uses=_BLOCKS),
    "sie_gplvm_one_space": LatentMethod(_ONE_SPACE, True, "sie_gplvm", "one_space", _BLOCKS),
    "die_gplvm": LatentMethod(
        f"weights of features that walk, by {RANDOM_WALK_RATIO:g} of their prior variance a row", True, "die_gplvm",
        uses=_BLOCKS,
    ),
    "die_gplvm_one_space": LatentMethod(_ONE_SPACE, True, "die_gplvm", "one_space", _BLOCKS),
    "pca": LatentMethod("scikit-learn's principal components", False, "pca"),
    "incremental_pca": LatentMethod(
        "scikit-learn's, in batches as large as the start; all rows by the last components", True, "incremental_pca"
    ),
    "kernel_pca": LatentMethod(
        "scikit-learn's, RBF kernel with a variance of 2^-10 to 2^10 times the median squared distance, the best of "
        "them by its error",
        False,
        "kernel_pca",
    ),
    "gplvm": LatentMethod(
        f"places at their posterior's mode, {map_model.NUM_INDUCING} inducing points (Lawrence, 2007)",
        False,
        "gplvm",
        uses=frozenset({"iterations"}),
    ),
    "bayesian_gplvm": LatentMethod(
        "GPyTorch's BayesianGPLVM", False, "bayesian_gplvm", uses=frozenset({"iterations"})
    ),
    "umap": LatentMethod("umap-learn with its defaults", False, "umap"),
}  # fmt: skip
# As the page's table and the picture name them, in the order of the table.
LABELS = {
    "ie_gplvm_one_space": "IE-GPLVM, in one latent space",
    "ie_gplvm": "IE-GPLVM, each row as reported",
    "sie_gplvm_one_space": "switching, in one latent space",
    "sie_gplvm": "switching, each row as reported",
    "die_gplvm_one_space": "dynamic, in one latent space",
    "die_gplvm": "dynamic, each row as reported",
    "gplvm": "GPLVM, all rows at once",
    "bayesian_gplvm": "GPyTorch's Bayesian GPLVM, all rows at once",
    "pca": "principal components",
    "incremental_pca": "incremental principal components",
    "kernel_pca": "kernel principal components",
    "umap": "UMAP, all rows at once",
}
