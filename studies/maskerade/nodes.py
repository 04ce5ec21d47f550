"""Table 6 of the paper: how many nodes the integrals of the evidence need, for so many evaluated kernels.

The first four fifths of the rows are for training, as in the authors' code. Kernels are draws of the prior; a surrogate
is fitted to the likelihoods of the first few hundred of them, and its integral is taken with new nodes in every
trial, so many for each number of components. The paper draws its nodes at random ("monte-carlo"); "sobol" are the
library's scrambled Sobol points, and "around" its own rule, which has a third of them around the best kernels.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.papers.quadrature import RegressionProblem
from gp_ensembles.papers.quadrature.prior import Hyperprior, draw_stratified
from gp_ensembles.papers.quadrature.quadrature import QuadratureNodes, draw_nodes
from gp_ensembles.papers.quadrature.surrogate import Evaluations, Surrogate
from studies.harness.comparison import Estimate, estimate
from studies.harness.experiment import Choices, found_sets
from studies.harness.parts import Record, Results, kept_or_made, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.harness.text import aligned
from studies.maskerade.methods import AS_PUBLISHED
from studies.maskerade.problems import problem_of, published_problem_of
from studies.maskerade.sets import AIRFOIL, last_fifth, load_sample, split_sample

_VERSION = 1
_CHUNK = 50  # likelihoods of a part
_BLOCK = 2_000  # nodes at a time
_NUM_CENTERS = 3
_REMARK = (
    "Log evidence of the training rows in nats, mean over draws of the nodes with its standard error, and the "
    "evidence over the largest design's (all kernels, most nodes, the same rule). The paper prints evidences in "
    "a unit that it does not state: how they change is what can be compared."
)


class NodesPlan(NamedTuple):
    """What is to be run.

    Attributes:
        rules: Ways to draw nodes.
        observations: Numbers of evaluated kernels.
        nodes: Numbers of nodes for each number of components.
        trials: Draws of the nodes.
        max_rows: Most rows of the set; all if ``None``.
        seed: Seed of the kernels, and of the first draw of nodes.
        as_published: Whether prior and distance are the paper's.
    """

    rules: Sequence[str]
    observations: Sequence[int]
    nodes: Sequence[int]
    trials: int
    max_rows: int | None
    seed: int
    as_published: bool


def random_nodes(prior: Hyperprior, per_size: int, generator: torch.Generator) -> QuadratureNodes:
    """Independent draws of the prior as nodes, ``per_size`` for each number of components."""
    parts = []
    for size in range(1, prior.max_components + 1):
        columns = len(prior.active_columns(size))
        points = torch.rand(per_size, columns, generator=generator, dtype=torch.float64, device="cpu")
        cube = prior.embed(points.clamp(1e-9, 1.0 - 1e-9).to(prior.means.scale), size)
        weights = prior.log_prob_components[size - 1].exp().expand(per_size) / per_size
        parts.append(QuadratureNodes(cube, weights, prior.num_components(cube)))
    return QuadratureNodes(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


RULES: dict[str, Callable[[Surrogate, int, torch.Generator], QuadratureNodes]] = {
    "monte-carlo": lambda surrogate, count, generator: random_nodes(surrogate.kernel_distance.prior, count, generator),
    "sobol": lambda surrogate, count, generator: draw_nodes(
        surrogate.kernel_distance.prior, count, generator=generator
    ),
    "around": lambda surrogate, count, generator: draw_nodes(
        surrogate.kernel_distance.prior,
        count,
        around=surrogate.evaluations.best(_NUM_CENTERS).cube,
        generator=generator,
    ),
}


def run(choices: Choices, observations: Sequence[int], nodes: Sequence[int]) -> str:
    """Make the table; write ``maskerade_table-6.txt``, ``.csv`` and ``.json``.

    Likelihoods and integrals are kept in ``maskerade_parts`` in the folder of the results, and a call that was cut goes
    on with them.

    Args:
        choices: What may be chosen of every experiment.
        observations: Numbers of evaluated kernels.
        nodes: Numbers of nodes for each number of components.

    Raises:
        ValueError: If a rule is unknown, a number is out of range, or the set is not publicly available.
        OSError: If the set cannot be read, or the results cannot be written.
    """
    rules = chosen(choices.methods, RULES, "method")
    for name, counts in (("observations", observations), ("nodes", nodes)):
        for count in counts:
            check_range(name, count, 2)
    few, many = sorted(set(observations)), sorted(set(nodes))
    plan = NodesPlan(rules, few, many, choices.trials, choices.max_rows, choices.seed, choices.as_published)
    (found,), notes = found_sets(choices, [AIRFOIL])
    sample = load_sample(found, plan.max_rows, plan.seed)
    split = split_sample(sample, last_fifth(len(sample.table.y), 0, 0))
    problem = published_problem_of(split) if plan.as_published else problem_of(split)
    make_folder(choices.out)
    folder = choices.out / "maskerade_parts"
    results = Results(plan, ("observations", "nodes", "rule", "trial"), plan.trials)
    results.notes += [*notes, *(note for note in split.notes if note not in notes)]
    mark = fingerprint(split.X, split.y)
    total = len(plan.observations) * len(plan.nodes) * len(plan.rules) * plan.trials
    with running(results, folder, total, choices.progress) as parts:
        everything = _evaluated(problem, plan, folder, mark)
        for count in plan.observations:
            known = Evaluations(everything.cube[:count], everything.log_likelihood[:count])
            surrogate = Surrogate(known, problem.kernel_distance)
            for size in plan.nodes:
                for rule in plan.rules:
                    for trial in range(plan.trials):
                        settings = _settings(plan, mark) | {"rule": rule, "kernels": count, "nodes": size}
                        settings["trial"] = trial
                        name = f"table6-{rule}-{count}-{size}-{trial}-{_suffix(plan)}"

                        def integrate() -> Record:
                            return integral(surrogate, rule, size, plan.seed + trial, settings)  # noqa: B023 (at once)

                        label = f"{count} kernels, {size} nodes, {rule}, trial {trial + 1} of {plan.trials}"
                        parts.run((count, size, rule, trial), name, settings, integrate, label)
    return _written(results, choices)


def log_evidence(surrogate: Surrogate, nodes: QuadratureNodes) -> float:
    r"""Logarithm of the surrogate's integral, :math:`\sum_s \omega_s (\alpha + m(s)^2 / 2)` (WSABI-L)."""
    total = torch.zeros_like(nodes.weights[0])
    for rows in torch.arange(len(nodes.weights), device=nodes.weights.device).split(_BLOCK):
        cross = surrogate.cross(surrogate.kernel_distance.prepare(nodes.cube[rows]))
        mean = surrogate.alpha + 0.5 * (cross @ surrogate.solved).square()
        total = total + (nodes.weights[rows] * mean).sum()
    return float(surrogate.log_scale + total.log())


def _evaluated(problem: RegressionProblem, plan: NodesPlan, folder: Path, mark: str) -> Evaluations:
    """Draws of the prior in random order with their likelihoods, some at a time, each kept."""
    generator = torch.Generator().manual_seed(plan.seed)
    count = max(plan.observations)
    cube = draw_stratified(problem.prior, count, generator=generator)
    cube = cube[torch.randperm(count, generator=generator, device="cpu")]
    values: list[float] = []
    for number, rows in enumerate(cube.split(_CHUNK)):

        def evaluate(rows: Tensor = rows) -> Record:
            return Record(settings, {}, {"log_likelihood": problem.evaluate(rows).tolist()})  # noqa: B023 (at once)

        settings = _settings(plan, mark) | {"chunk": number, "count": count}
        name = f"table6-likelihoods-{count}-{number}-{_suffix(plan)}"
        values += kept_or_made(folder / f"{name}.json", settings, evaluate).curves["log_likelihood"]
    return Evaluations(cube, cube.new_tensor(values))


def integral(surrogate: Surrogate, rule: str, size: int, seed: int, settings: dict[str, object]) -> Record:
    """One part: the log evidence by nodes drawn with a seed."""
    clock = time.perf_counter()
    with torch.no_grad():
        value = log_evidence(surrogate, RULES[rule](surrogate, size, torch.Generator().manual_seed(seed)))
    return Record(settings, {"log_evidence": value, "seconds": time.perf_counter() - clock}, {})


def _settings(plan: NodesPlan, mark: str) -> dict[str, object]:
    return {"version": _VERSION, "seed": plan.seed, "as_published": plan.as_published, "data": mark}


def _suffix(plan: NodesPlan) -> str:
    rows = "" if plan.max_rows is None else f"-rows{plan.max_rows}"
    return f"seed{plan.seed}{rows}{'-published' if plan.as_published else ''}"


def nodes_text(results: Results[NodesPlan]) -> str:
    """Rules and nodes down, evaluated kernels across."""
    plan, rows = results.plan, []
    for rule in plan.rules:
        largest = estimate(results.values("log_evidence", plan.observations[-1], plan.nodes[-1], rule)).mean
        for size in plan.nodes:
            found = [estimate(results.values("log_evidence", count, size, rule)) for count in plan.observations]
            cells = [cell for one in found for cell in (_precise(one), _relative(one.mean - largest))]
            rows.append([rule, str(size), *cells])
    header = [
        "nodes drawn by",
        "nodes",
        *(word for count in plan.observations for word in (f"{count} kernels", "over")),
    ]
    return aligned(header, rows)


def _precise(found: Estimate) -> str:
    return f"{found.mean:.2f}" if math.isnan(found.error) else f"{found.mean:.2f} ± {found.error:.2g}"


def _relative(difference: float) -> str:
    return f"{math.exp(min(difference, 700.0)):.3g}"


def _written(results: Results[NodesPlan], choices: Choices) -> str:
    plan = results.plan
    title = f"MASKERADE, table-6: evidence against the number of nodes; {plan.trials} draw(s) of the nodes"
    title += ", AS PUBLISHED" if plan.as_published else ""
    published = [f"The authors' choices: {AS_PUBLISHED}; kernels are draws of the prior."] if plan.as_published else []
    head = "\n".join([title, _REMARK, *published, *results.notes])
    text = "\n\n".join(filter(None, [head, nodes_text(results), "\n".join(results.failure_lines())]))
    kinds = ("log_evidence", "seconds")
    content = {
        "table": "table-6",
        "title": title,
        "remark": _REMARK,
        "notes": results.notes,
        **{name: getattr(plan, name) for name in NodesPlan._fields},
        "failures": results.failed(),
    }
    stem = f"maskerade_table-6{'_as_published' if plan.as_published else ''}"
    return write_report(choices.out / stem, text, ([*results.fields, *kinds], results.rows(kinds)), content, {})
