"""``docs/evidence/arena.md`` and its pictures from the scores that the arena has written.

``python -m studies.arena.page --scores out/arena/arena.csv`` keeps these scores as ``studies/arena/scores.csv`` and
makes the page of them; without an argument it makes the page again. Its text is in ``studies/arena/page.md``.
"""

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.files.replacing import write_text
from studies.arena.contenders import METHODS
from studies.arena.pictures import draw_arena, panels_of
from studies.arena.tables import ArenaPlan, marks_table, present, score_table, summary_table
from studies.harness.parts import Record, Results

ROOT = Path(__file__).resolve().parents[2]
SCORES, TEXT = (Path(__file__).with_name(name) for name in ("scores.csv", "page.md"))
PAGE = ROOT / "docs" / "evidence" / "arena.md"
PRESETS = ("auto", "deep", "light")
_CLOSE, _CLOSE_RATIO = 0.01, 1.01  # nats, and times the best CRPS: what counts as level with the best


class Beside(NamedTuple):
    """A method compared with the best of its rivals on each set, chosen in hindsight.

    Attributes:
        ahead: Its log score minus theirs, by set.
        ratio: Its CRPS relative to theirs, by set.
        coverage: Of its 90 % intervals, by set.
    """

    ahead: dict[str, float]
    ratio: dict[str, float]
    coverage: dict[str, float]


def read_scores(path: Path = SCORES) -> Results[ArenaPlan]:
    """The arena's results from a file of scores, which :func:`studies.arena.study.run` leaves as ``arena.csv``.

    Raises:
        OSError: If there is no such file.
        ValueError: If it holds none.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    if not lines:
        raise ValueError(f"{path} holds no scores; run the arena first")
    kinds = {line["set"]: "classes" if line["error_rate"] else "numbers" for line in lines}
    most = max(int(float(line["rows"])) for line in lines)
    plan = ArenaPlan(list(kinds), kinds, list(METHODS), most)
    results = Results(plan, ("set", "method", "seed"), 1 + max(int(line["seed"]) for line in lines))
    for line in lines:
        scores = {name: float(value) for name, value in list(line.items())[3:] if value}
        results.records[line["set"], line["method"], int(line["seed"])] = Record({}, scores, {})
    return results


def beside_rivals(results: Results[ArenaPlan], method: str) -> Beside:
    """A method of ours compared with the best rival of each set of numbers; NaN where it did not run.

    Rivals are all methods that are not ours.
    """
    sets, methods = present(results, is_class=False)
    rivals = [name for name in methods if METHODS[name].family != "ours"]

    def scores(kind: str, name: str) -> list[float]:
        return [value for value in (results.mean(kind, name, rival) for rival in rivals) if not math.isnan(value)]

    return Beside(
        {name: results.mean("log_score", name, method) - max(scores("log_score", name)) for name in sets},
        {name: results.mean("crps", name, method) / min(scores("crps", name)) for name in sets},
        {name: results.mean("coverage", name, method) for name in sets},
    )


def page(text: str, results: Results[ArenaPlan]) -> str:
    """The text with a table where it says ``<!-- NAME -->``."""
    sets, methods = present(results, is_class=False)
    ours = [name for name in PRESETS if name in methods]
    whole = [name for name in methods if all(results.found(one, name) for one in sets)]
    classes, of_classes = present(results, is_class=True)
    tables = {
        "summary": _body(summary_table(results, is_class=False)),
        "rivals": _rivals_table({name: beside_rivals(results, name) for name in ours}),
        "baselines": _body(marks_table(results, sets)),
        "log_score": score_table(results, "log_score", sets, whole),
        "crps": score_table(results, "crps", sets, whole),
        "microseconds": score_table(results, "microseconds", sets, whole),
        "classes": _body(summary_table(results, is_class=True)) if classes else "",
        "classes_log_score": score_table(results, "log_score", classes, of_classes),
        "classes_error_rate": score_table(results, "error_rate", classes, of_classes),
        "classes_microseconds": score_table(results, "microseconds", classes, of_classes),
    }
    for name, table in tables.items():
        text = text.replace(f"<!-- {name} -->", table)
    return text


def _body(table: str) -> str:
    """A table without its heading."""
    return table.split("\n\n", 1)[1]


def _rivals_table(found: Mapping[str, Beside]) -> str:
    lines = [
        "| | at most 0.01 behind the best | worst | mean | CRPS within 1 % of the best | worst | 90 % coverage |",
        "|---|" + "---:|" * 6,
    ]
    for name, compared in found.items():
        ahead, ratio = _known(compared.ahead), _known(compared.ratio)
        least, most = min(ahead, key=ahead.__getitem__), max(ratio, key=ratio.__getitem__)
        coverage = _known(compared.coverage).values()
        cells = [
            _share(value >= -_CLOSE for value in ahead.values()),
            f"{ahead[least]:+.3f} ({least})",
            f"{statistics.fmean(ahead.values()):+.3f}",
            _share(value <= _CLOSE_RATIO for value in ratio.values()),
            f"{ratio[most]:.3f} ({most})",
            f"{100 * min(coverage):.1f} to {100 * max(coverage):.1f} %",
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _known(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _share(passed: Iterable[bool]) -> str:
    all_of_them = list(passed)
    return f"{sum(all_of_them)} of {len(all_of_them)}"


def main(argv: Sequence[str]) -> int:
    """Write the page and its pictures; returns 0, or 2 where there are no scores."""
    parser = argparse.ArgumentParser("python -m studies.arena.page", description=__doc__)
    parser.add_argument("--scores", type=Path, default=SCORES, help="a file arena.csv; the one that is kept")
    values = parser.parse_args(list(argv))
    try:
        results = read_scores(values.scores)
    except (OSError, ValueError, KeyError) as error:
        print(f"studies.arena.page: {error}", file=sys.stderr)
        return 2
    if values.scores.resolve() != SCORES:
        write_text(SCORES, values.scores.read_text(encoding="utf-8"))
    write_text(PAGE, page(TEXT.read_text(encoding="utf-8"), results))
    panels = panels_of(results)
    draw_arena(panels, ROOT / "docs" / "arena.png")
    draw_arena(panels[:1], ROOT / "docs" / "arena_log_score.png")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
