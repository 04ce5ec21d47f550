"""The tables of the experiments: means over trials with their standard errors, and paired tests."""

from collections.abc import Sequence

from studies.doebe.methods import Method
from studies.doebe.study import SHARES, Plan, score_kinds, so_far
from studies.harness.comparison import Estimate, estimate, paired
from studies.harness.parts import Results
from studies.harness.text import aligned

KIND_TITLES = {
    "log_score": "mean log score (nats per row of standardized targets, larger is better)",
    "nmse": "nMSE",
    "error": "share of wrong classes",
    "log_score_gaussian": "log score of the normal with the mixture's moments",
    "log_score_as_published": "log score as the authors compute it (moments; weights of E-DOEBE have seen the target)",
    "nmse_as_published": "nMSE as the authors compute it",
}


def estimates(results: Results[Plan], name: str, method: str, kind: str) -> Estimate:
    """Mean over trials of a score of a method on a set."""
    return estimate(results.values(f"{method}; {kind}", name))


def finished_sets(results: Results[Plan]) -> list[str]:
    """Sets of which there is at least one trial."""
    return [name for name in results.plan.sets if results.found(name)]


def shown_kinds(results: Results[Plan], is_classes: bool = False) -> list[str]:
    """Scores that tables show: those of the authors' way, if it was theirs, and honest ones."""
    return [kind for kind in score_kinds(results.plan.as_published, is_classes) if kind != "log_score_gaussian"]


def scores_text(results: Results[Plan]) -> str:
    """A table a score: sets down, methods across."""
    return _scores_text(results, shown_kinds(results))


def classes_text(results: Results[Plan]) -> str:
    """The same of classes."""
    return _scores_text(results, shown_kinds(results, True))


def _scores_text(results: Results[Plan], kinds: Sequence[str]) -> str:
    parts = []
    for kind in kinds:
        rows: list[list[object]] = [
            [name, *(str(estimates(results, name, method.name, kind)) for method in results.plan.methods)]
            for name in finished_sets(results)
        ]
        header = ["set", *(method.name for method in results.plan.methods)]
        parts.append(f"{KIND_TITLES[kind]}\n{aligned(header, rows)}")
    return "\n\n".join(parts)


def ensembles_text(results: Results[Plan]) -> str:
    """Scores, and E-DOEBE compared with the family that is best in hindsight."""
    parts = [scores_text(results)]
    names = [method.name for method in results.plan.methods]
    families = [method.name for method in results.plan.methods if len(method.families) == 1]
    if "E-DOEBE" in names and families:
        for kind in shown_kinds(results):
            sign = 1.0 if kind.startswith("log") else -1.0
            rows: list[list[object]] = []
            for name in finished_sets(results):
                best = max(families, key=lambda one: sign * estimates(results, name, one, kind).mean)
                pairs = [results.values(f"{method}; {kind}", name) for method in ("E-DOEBE", best)]
                found = paired(*pairs)
                wins = found.num_larger if sign > 0 else sum(a < b for a, b in zip(*pairs, strict=True))
                rows.append([name, best, found.mean, f"{wins}/{found.num}", found.t_p_value])
            header = ["set", "best family", "E-DOEBE less it", "trials won", "paired t p"]
            won = sum(sign * float(str(row[2])) > 0 for row in rows)
            title = f"E-DOEBE against the best family of each set: {KIND_TITLES[kind]}; better on {won} of {len(rows)}"
            parts.append(f"{title}\n{aligned(header, rows)}")
    return "\n\n".join(parts)


def sample_name(method: str, num_samples: int) -> str:
    """What a method with so many samples is called.

    Example:
        >>> sample_name("DOE-RFF", 10)
        'DOE-RFF, S=10'
    """
    return f"{method}, S={num_samples}"


def sample_pairs(methods: Sequence[Method]) -> list[tuple[str, str, str]]:
    """Families of which there is one with the optimum alone and one with samples: name and both methods' names.

    Example:
        >>> from studies.doebe.methods import Averaging
        >>> [Method(f"A, S={S}", Averaging(), True, False, ("rff",), S) for S in (1, 10)][0].name
        'A, S=1'
    """
    names = [method.name for method in methods]
    found = []
    for one in (name for name in names if name.endswith(", S=1")):
        stem = one.removesuffix(", S=1")
        found += [(stem, one, more) for more in names if more.startswith(f"{stem}, S=") and more != one]
    return found


def samples_text(results: Results[Plan]) -> str:
    """Scores, and samples of hyperparameters against the optimum alone, trial by trial."""
    parts = [scores_text(results)]
    for kind in shown_kinds(results):
        rows: list[list[object]] = []
        for name in finished_sets(results):
            for stem, one, more in sample_pairs(results.plan.methods):
                found = paired(results.values(f"{more}; {kind}", name), results.values(f"{one}; {kind}", name))
                better = found.num_larger if kind.startswith("log") else found.num - found.num_larger
                tests = [found.t_p_value, found.wilcoxon_p_value]
                rows.append([name, stem, found.mean, found.median, f"{better}/{found.num}", *tests])
        header = ["set", "method", "mean gain", "median", "trials better", "paired t p", "Wilcoxon p"]
        if rows:
            parts.append(f"samples less the optimum alone: {KIND_TITLES[kind]}\n{aligned(header, rows)}")
    return "\n\n".join(parts)


def curves_text(results: Results[Plan]) -> str:
    """Scores so far after a tenth, a quarter and a half of the stream, and at its end."""
    parts = []
    for kind in ("nmse", "log_score"):
        rows: list[list[object]] = []
        for name in finished_sets(results):
            for method in results.plan.methods:
                curves = [record.curves[f"{method.name}; {kind}"] for record in results.found(name).values()]
                found = [estimate(trials) for trials in zip(*map(so_far, curves), strict=True)]
                rows.append([name, method.name, *map(str, found)])
        header = ["set", "method", *(f"after {share:.0%}" for share in SHARES)]
        parts.append(f"{KIND_TITLES[kind]}, so far\n{aligned(header, rows)}")
    return "\n\n".join(parts)
