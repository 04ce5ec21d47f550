"""Which bases, dynamics and weight rule serve every stream: the table behind the preset ``auto``.

Experts do not depend on the rule that weighs them, so their log densities, which ``expert_densities.py`` has stored,
are enough to score any choice exactly:

    python -m benchmarks.expert_densities --data ../shared/data --out densities
    python benchmarks/choose_auto.py densities --out choose_auto.csv

and for the table in ``README.md``: ``--families all --dynamics all --samples 1 --rules BMA "twins 0.01" ...``
"""

import argparse
import csv
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.ensembles.presets import default_rule
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    MetaLearner,
    OnlineNewton,
    SoftBayes,
    group_transition,
    sticky_transition,
)

Rule = Callable[[list[str]], MetaLearner]
FAMILIES = {
    "fourier+radial": ("rff", "rbf"),
    "hilbert+fourier+radial": ("hsgp", "rff", "rbf"),
    "all": ("hsgp", "rff", "rbf", "poly2", "poly3", "poly4", "linear", "spline"),
}
DYNAMICS = {
    "static": ("static",),
    "1e-3": ("dynamic 0.001",),
    "static,1e-3,1e-2": ("static", "dynamic 0.001", "dynamic 0.01"),
    "all": ("static", "dynamic 0.0001", "dynamic 0.001", "dynamic 0.01"),
}
RULES: dict[str, Rule] = {
    "BMA": lambda names: BayesianModelAveraging(),
    "sticky 0.99": lambda names: MarkovSwitching(sticky_transition(len(names), 0.99)),
    "sticky 0.999": lambda names: MarkovSwitching(sticky_transition(len(names), 0.999)),
    "twins 0.01": lambda names: MarkovSwitching(group_transition([twin(name) for name in names], 0.01)),
    "fixed share 0.05": lambda names: FixedShare(0.05),
    "fixed share 0.2": lambda names: FixedShare(0.2),
    "DMA 0.99": lambda names: DynamicModelAveraging(0.99),
    "DMA 0.9": lambda names: DynamicModelAveraging(0.9),
    "EG 0.01+1e-3": lambda names: ExponentiatedGradient(0.01, 1e-3),
    "Soft-Bayes": lambda names: SoftBayes(),
    "Soft-Bayes 0.02": lambda names: SoftBayes(0.02),
    "Soft-Bayes 0.05": lambda names: SoftBayes(0.05),
    "auto": lambda names: default_rule(),
    "ONS": lambda names: OnlineNewton(),
    "D-ONS": lambda names: DiscountedOnlineNewton(),
}


def twin(name: str) -> str:
    """What an expert shares with its copies of other dynamics."""
    base, _, number = name.split("/")
    return f"{base}/{number}"


def chosen(names: list[str], bases: tuple[str, ...], dynamics: tuple[str, ...], samples: int) -> list[int]:
    """The experts of a choice; ``samples`` of the three that surround each optimum, itself first."""
    found = []
    for index, name in enumerate(names):
        base, dynamic, number = name.split("/")
        if base in bases and dynamic in dynamics and int(number) % 3 < samples:
            found.append(index)
    return found


def score(log_prob: Tensor, names: list[str], rule: Rule) -> float:
    """Mean log density of the mixture under a rule."""
    learner = rule(names)
    _, output = learner.update_block(learner.init(len(names), log_prob), log_prob)
    return float(output.log_prob.mean())


def table(path: Path) -> str:
    """Scores of one choice of experts by set and rule, and how far each rule is from the best of them, in markdown."""
    with path.open(newline="") as file:
        rows = [(row[0], row[4], float(row[6])) for row in csv.reader(file) if row[1:4] == ["all", "all", "1"]]
    rules = list(dict.fromkeys(rule for _, rule, _ in rows))
    scores = {name: {r: s for n, r, s in rows if n == name} for name in dict.fromkeys(name for name, _, _ in rows)}
    lines = ["| set | " + " | ".join(rules) + " |", "|---" * (len(rules) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{found[r]:.3f}" for r in rules) + " |" for name, found in scores.items()]
    gaps = {r: [found[r] - max(found.values()) for found in scores.values()] for r in rules}
    for label, reduce in (("mean gap to the best", lambda g: sum(g) / len(g)), ("largest gap", min)):
        lines.append(f"| *{label}* | " + " | ".join(f"{reduce(gaps[r]):.3f}" for r in rules) + " |")
    return "\n".join(lines)


def main() -> None:
    """Score every choice on every set; sets and choices that are in the table already are not scored again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("densities", type=Path)
    parser.add_argument("--out", type=Path, default=Path("choose_auto.csv"))
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--dynamics", nargs="*", default=list(DYNAMICS))
    parser.add_argument("--samples", nargs="*", type=int, default=[1, 3])
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--rows", type=int, default=12_000, help="most rows of a set")
    parser.add_argument("--most", type=int, default=60, help="most experts for the Newton rules, whose cost is cubic")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = set()
    if arguments.out.exists():
        with arguments.out.open(newline="") as file:
            done = {tuple(row[:5]) for row in csv.reader(file)}
    choices = list(product(arguments.families, arguments.dynamics, arguments.samples, arguments.rules))
    with arguments.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for path in tqdm(sorted(arguments.densities.glob("*.npz"))):
            stored = np.load(path, allow_pickle=False)
            names = [str(name) for name in stored["names"]]
            log_prob = torch.tensor(stored["log_prob"][:, stored["observed"]]).double()[:, : arguments.rows]
            for family, dynamic, samples, rule in choices:
                key = (path.stem, family, dynamic, str(samples), rule)
                index = chosen(names, FAMILIES[family], DYNAMICS[dynamic], samples)
                if key in done or ("ONS" in rule and len(index) > arguments.most):
                    continue
                value = score(log_prob[index], [names[i] for i in index], RULES[rule])
                writer.writerow([*key, len(index), f"{value:.6f}"])
            file.flush()
    print(table(arguments.out))


if __name__ == "__main__":
    main()
