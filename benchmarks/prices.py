"""One table of cost ratios: blocks, single rows, weight rules, other likelihoods, the start.

    python -m benchmarks.prices
    python -m benchmarks.prices --history benchmarks/prices.jsonl

Each ratio is of two CPU times of one thread that took turns in one process, so it holds on other machines as well as
caches allow; the floors, a matrix product and reading memory, are measured in the same run. ``--history`` adds the run
to a file of what each version cost, and shows the last run of the same processor next to it. ``--keep`` only
writes the table of the site from the last runs of ``benchmarks/prices.jsonl`` with numba and without.
"""

import argparse
import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import price_of_block, price_of_likelihoods, price_of_row
from benchmarks.measured import Cell, Table, processor, write
from benchmarks.price_of_block import Ratio, product_rate, read_rate
from gp_ensembles import __version__
from gp_ensembles.numerics.compiled import IS_COMPILED

HISTORY = Path(__file__).with_name("prices.jsonl")
COLUMNS = ("", "goal, at most", "without numba", "with numba")
PARTS: dict[str, Callable[[], list[Ratio]]] = {
    "blocks": price_of_block.ratios,
    "single rows": price_of_row.ratios,
    "weight rules": price_of_block.rule_ratios,
    "other likelihoods": price_of_likelihoods.ratios,
    "the start": price_of_row.start_ratios,
}


def earlier(history: Path, name: str, compiled: bool) -> dict[str, float]:
    """Ratios of the last run of a history on the same processor, with numba or without as this one."""
    runs = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    alike = [run for run in runs if run["processor"] == name and run["compiled"] == compiled]
    return dict(alike[-1]["ratios"]) if alike else {}


def table(history: Path) -> Table:
    """For each ratio of the last runs its goal, and what it was without numba and with it; of their day and machine."""
    runs = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    plain, fast = ([run for run in runs if run["compiled"] == is_compiled][-1] for is_compiled in (False, True))
    with_numba = {name.replace(", with numba", ""): ratio for name, ratio in fast["ratios"].items()}
    rows: list[list[Cell]] = []
    for what, ratio in plain["ratios"].items():
        name = what.replace(", without numba", "")
        rows.append([name, plain["goals"].get(what), ratio, with_numba.get(name)])
    command = "python -m benchmarks.prices --history benchmarks/prices.jsonl"
    return Table(command, fast["date"], fast["processor"], fast["torch"], list(COLUMNS), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=Path, default=None, help="a file of JSON lines, to which the run is added")
    parser.add_argument("--keep", action="store_true", help="only write the table of the site")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(arguments)
    if options.keep:
        write("prices", table(HISTORY))
        return
    torch.set_num_threads(1)
    name = processor()
    before = {} if options.history is None else earlier(options.history, name, IS_COMPILED)
    floors = {"matrix product, GFLOP/s": product_rate() / 1e9, "reading memory, GB/s": read_rate() / 1e9}
    print(f"gp_ensembles {__version__}, {name}, one thread, {'with' if IS_COMPILED else 'without'} numba")
    print(", ".join(f"{what} {value:.0f}" for what, value in floors.items()))
    print("\n| | ratio | goal, at most | last run |\n|---|---:|---:|---:|")
    found: dict[str, float] = {}
    goals: dict[str, float] = {}
    for part in options.parts:
        for what, ratio, most in PARTS[part]():
            found[what] = round(ratio, 3)
            goals |= {} if most is None else {what: most}
            goal = "" if most is None else f"{most:g}{'' if ratio <= most else ' (missed)'}"
            past = f"{before[what]:.2f}" if what in before else ""
            print(f"| {what} | {ratio:.2f} | {goal} | {past} |", flush=True)
    if options.history is not None:
        run = {
            "date": datetime.date.today().isoformat(),
            "version": __version__,
            "processor": name,
            "torch": torch.__version__,
            "compiled": IS_COMPILED,
            "floors": {what: round(value, 1) for what, value in floors.items()},
            "ratios": found,
            "goals": goals,
        }
        with options.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")


if __name__ == "__main__":
    main()
