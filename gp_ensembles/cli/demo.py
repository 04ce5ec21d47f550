"""The main job on a table as a meter leaves it: dates, words, holes, a sensor that sleeps at first, drift."""

from dataclasses import replace

from gp_ensembles.cli.commands import Output, stream
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.data.messy import TARGET, write_messy_load
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.tables import explain, open_rows

FILE = "load.csv"


def run_demo(output: Output) -> dict[str, object]:
    """Write an hourly load into the folder of the results, and predict it."""
    make_writable(output.out)
    path = output.out / FILE
    write_messy_load(path)
    rows = open_rows(path, TARGET)
    summary = stream(rows, replace(StreamConfig(), warmup=rows.num_warm_up), output)
    print(f"gp-ensembles stream {path} --target {TARGET}\n\n{explain(rows.encoder, rows.columns)}\n")
    return summary
