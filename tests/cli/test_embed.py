"""The command embed end to end: files that agree with the model and with one another, gaps, resumption, bad input."""

import json
import math
import signal
from typing import get_args

import numpy as np
import pytest
import torch

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.embed import command, summary
from gp_ensembles.cli.embed.options import EmbedOptions, Variant, build_model
from gp_ensembles.cli.embed.rows import make_labels, read_csv_rows
from gp_ensembles.cli.embed.summary import neighbor_error
from gp_ensembles.files.checkpoint import Kind, write_checkpoint
from gp_ensembles.gplvm import (
    IEGPLVM,
    Embeddings,
    LatentSettings,
    die_gplvm,
    dsie_gplvm,
    ie_gplvm,
    rbf_features,
    sie_gplvm,
)
from gp_ensembles.meta_learners import MarkovSwitching
from gp_ensembles.meta_learners.switching import sticky_transition
from gp_ensembles.numerics.cholesky import NumericalError

ROWS, WARMUP, COLUMNS = 90, 50, 6
HEADER = tuple("abcdef")
SCALES = torch.tensor([1.0, 1000.0, 0.01, 5.0, 1.0, 20.0], dtype=torch.float64)
EMPTY, GAPS = 70, ((60, 1), (60, 4), (80, 0))
QUICK = ["--num_frequencies", "10", "--warmup", str(WARMUP), "--progress", "false"]
PLAIN = [*QUICK, "--pictures", "false"]


def surface(num_rows=ROWS):
    """Rows of six columns in different units, smooth functions of two hidden numbers, and which side they are on."""
    source = torch.Generator().manual_seed(3)
    u, v = (2 * torch.rand(2, num_rows, generator=source, dtype=torch.float64) - 1).unbind()
    rows = torch.stack([u, v, (2 * u).sin(), (2 * v).cos(), u * v, (u + v).exp()], dim=-1)
    noise = 0.01 * torch.randn(num_rows, COLUMNS, generator=source, dtype=torch.float64)
    return (10 + rows + noise) * SCALES, ["left" if value < 0 else "right" for value in u.tolist()]


def table(Y, labels=None):
    cells = [[repr(value) for value in row] for row in Y.tolist()]
    return cells if labels is None else [[*row, label] for row, label in zip(cells, labels, strict=True)]


def with_gaps():
    rows = table(*surface())
    for row, column in GAPS:
        rows[row][column] = ""
    rows[EMPTY][:COLUMNS] = [""] * COLUMNS
    rows[5][COLUMNS] = ""  # a label that nobody knows
    return rows


def values_of(rows, prefix):
    names = [name for name in rows[0] if name.startswith(prefix)]
    cells = [[float(row[name]) if row[name] else math.nan for name in names] for row in rows]
    return torch.tensor(cells, dtype=torch.float64)


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def embed(data, out, *options):
    return main(["embed", str(data), "--out", str(out), *(options or PLAIN)])


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, small):
    """A folder with a table with gaps and labels, and the results of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("embed")
    small.write(folder / "pump.csv", with_gaps(), (*HEADER, "side"))
    assert embed(folder / "pump.csv", folder / "full", *QUICK, "--label", "side") == 0
    return folder


@pytest.fixture(scope="module")
def by_hand():
    """The model driven by hand on the rows with a value, each column standardized by the warm-up rows."""
    Y, _ = surface()
    for row, column in GAPS:
        Y[row, column] = math.nan
    scale = Y[:WARMUP].std(0, correction=0)
    rows = (torch.cat([Y[:EMPTY], Y[EMPTY + 1 :]]) - Y[:WARMUP].mean(0)) / scale
    model = IEGPLVM(rbf_features(2, 10, generator=torch.Generator().manual_seed(0)), COLUMNS)
    first, later = model.start(rows[:WARMUP]), [model.update(row) for row in rows[WARMUP:].split(1)]
    joined = Embeddings(
        *(torch.cat(part, dim=axis) for part, axis in zip(zip(*later, strict=True), (0, 0, 1, 0, 1, 1), strict=True))
    )
    return model, first, joined, rows, scale


def test_a_run_leaves_everything_it_should(workplace, small):
    names = {path.name for path in (workplace / "full").iterdir()}
    assert names == {
        "embeddings.csv", "weights.csv", "imputed.csv", "summary.json", "checkpoint.pt", "embedding.png"
    }  # fmt: skip
    rows = small.read(workplace / "full" / "embeddings.csv")
    assert list(rows[0]) == ["row", "x1", "x2", "reported_x1", "reported_x2", "expert", "log_prob", "label"]
    assert [int(row["row"]) for row in rows] == list(range(1, ROWS + 1))
    labels = surface()[1]
    labels[5] = ""
    assert [row["label"] for row in rows] == labels
    summary = summary_of(workplace / "full")
    assert (summary["rows"], summary["warmup"], summary["label_kind"]) == (ROWS, WARMUP, "category")
    assert (summary["rows_without_value"], summary["missing_entries"]) == (1, len(GAPS))
    assert summary["options"]["standardize"] is True
    assert set(summary["versions"]) >= {"gp_ensembles", "torch"}
    assert summary["seconds_per_row"] > 0


def test_coordinates_are_those_of_the_model_driven_by_hand(workplace, small, by_hand):
    model, first, later, rows, scale = by_hand
    found = [row for row in small.read(workplace / "full" / "embeddings.csv") if row["expert"]]
    assert torch.equal(values_of(found, "x"), torch.cat([first.by_expert, later.by_expert], 1)[model.best_expert])
    assert torch.equal(values_of(found, "reported_"), torch.cat([first.embedding, later.embedding]))
    assert [int(row["expert"]) for row in found] == torch.cat([first.expert, later.expert]).tolist()
    units = torch.where(rows.isnan(), 0.0, scale.log()).sum(-1)
    expected = torch.cat([first.log_prob, later.log_prob]) - units
    torch.testing.assert_close(values_of(found, "log_prob").squeeze(-1), expected, rtol=1e-12, atol=1e-12)
    weights = small.read(workplace / "full" / "weights.csv")
    written = values_of([row for row in weights if row["length scale 1"]], "length")
    expected = torch.cat([first.log_weights, later.log_weights], 1).exp().T
    torch.testing.assert_close(written, expected, rtol=1e-8, atol=1e-12)
    assert summary_of(workplace / "full")["best_expert"] == model.best_expert


def test_gaps_are_filled_and_a_row_without_a_value_has_no_place(workplace, small, capsys):
    Y, _ = surface()
    filled = small.read(workplace / "full" / "imputed.csv")
    assert [(int(cell["row"]) - 1, HEADER.index(cell["column"])) for cell in filled] == list(GAPS)
    for cell, (row, column) in zip(filled, GAPS, strict=True):
        assert abs(float(cell["mean"]) - Y[row, column]) < 0.2 * Y[:, column].std()
        assert 0 < float(cell["std"]) < Y[:, column].std()
    empty = small.read(workplace / "full" / "embeddings.csv")[EMPTY]
    assert all(value == "" for name, value in empty.items() if name not in ("row", "label"))
    assert embed(workplace / "pump.csv", workplace / "note", *PLAIN, "--label", "side") == 0
    told = capsys.readouterr()
    assert "1 row has no value" in told.err
    assert "rows without a value: 1" in told.out
    assert str(workplace / "note" / "imputed.csv") in told.out
    assert "embedding.png" not in told.out


def test_the_summary_agrees_with_brute_force(workplace, by_hand):
    model, first, later, rows, scale = by_hand
    spaces = summary_of(workplace / "full")["spaces"]
    sides = [side for row, side in enumerate(surface()[1]) if row != EMPTY]
    known = [row for row in range(len(rows)) if row != 5]

    def error(X):
        distance = torch.cdist(X[known], X[known]).fill_diagonal_(math.inf)
        nearest = distance.argmin(-1).tolist()
        return sum(sides[known[i]] != sides[known[j]] for i, j in enumerate(nearest)) / len(known)

    X = torch.cat([first.by_expert, later.by_expert], 1)[model.best_expert]
    assert spaces["one latent space"]["neighbor_error"] == error(X)
    reported = torch.cat([first.embedding, later.embedding])
    assert spaces["as reported"]["neighbor_error"] == error(reported)
    back = model.inverse_transform(X, torch.full((len(X),), model.best_expert)).mean
    residual, spread = (back - rows).square(), (rows - rows.nanmean(0)).square()
    explained = 1 - residual.nansum() / spread.nansum()
    assert spaces["one latent space"]["variance_explained"] == pytest.approx(float(explained), rel=1e-12)
    rmse = torch.tensor(list(spaces["one latent space"]["rmse"].values()), dtype=torch.float64)
    torch.testing.assert_close(rmse, residual.nanmean(0).sqrt() * scale)
    filled = torch.where(rows.isnan(), rows.nanmean(0), rows)
    left, size, right = torch.linalg.svd(filled - filled.mean(0), full_matrices=False)
    line = (left[:, :2] * size[:2]) @ right[:2] + filled.mean(0)
    explained = 1 - (line - rows).square().nansum() / spread.nansum()
    assert spaces["principal components"]["variance_explained"] == pytest.approx(float(explained), rel=1e-9)
    assert spaces["principal components"]["neighbor_error"] == error(left[:, :2] * size[:2])
    assert (
        spaces["one latent space"]["variance_explained"] > 0.99 > spaces["principal components"]["variance_explained"]
    )


def test_equal_places_are_neighbors_of_one_another():
    X = torch.tensor([[0.0], [0.0], [0.0], [9.0]], dtype=torch.float64)
    assert neighbor_error(X, torch.tensor([1.0, 1.0, 1.0, 2.0])) == 0.25
    everywhere = torch.ones(4, dtype=torch.bool)
    assert summary.labeled_error(make_labels("kind", ["a", "a", "", "b"]), X, everywhere) == pytest.approx(1 / 3)
    assert summary.labeled_error(make_labels("kind", ["a", "", "", ""]), X, everywhere) is None


def interrupt_after(monkeypatch, num_blocks, act):
    """Make the model's update act once, in its block number ``num_blocks``."""
    update, count = IEGPLVM.update, []

    def counted(self, *arguments):
        count.append(1)
        if len(count) == num_blocks:
            act()
        return update(self, *arguments)

    monkeypatch.setattr(IEGPLVM, "update", counted)


VARIANTS = {
    "static": (1, 13, []),
    "switching": (4, 3, ["--stay", "0.9"]),
    "dynamic-switching": (7, 3, ["--random_walk_ratio", "0.001", "--stay", "0.9"]),
}


def drive(variant, rows):
    """The model of that name driven by hand, block by block."""
    rule = MarkovSwitching(sticky_transition(7, 0.9)) if "switching" in variant else None
    settings = LatentSettings(random_walk_ratio=0.001 if "dynamic" in variant else 0.0, seed=4)
    model = IEGPLVM(rbf_features(2, 10, generator=torch.Generator().manual_seed(4)), COLUMNS, rule, settings)
    size = VARIANTS[variant][0]
    parts = [model.start(rows[:WARMUP]), *(model.update(block, size) for block in rows[WARMUP:].split(size))]
    return torch.cat([part.embedding for part in parts])


@pytest.mark.processor
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_goes_on_bit_for_bit(workplace, small, by_hand, variant, monkeypatch, capsys):
    block, num_blocks, options = VARIANTS[variant]
    given = [*PLAIN, "--label", "side", "--variant", variant, "--seed", "4", "--block_size", str(block), *options]
    whole, part = workplace / f"{variant} whole", workplace / f"{variant} part"
    assert embed(workplace / "pump.csv", whole, *given) == 0
    found = [row for row in small.read(whole / "embeddings.csv") if row["expert"]]
    assert torch.equal(values_of(found, "reported_"), drive(variant, by_hand[3]))
    part.mkdir()
    (part / "embeddings.csv").write_text("earlier results")
    (part / "checkpoint.pt").write_text("earlier checkpoint")
    with monkeypatch.context() as patch:
        interrupt_after(patch, num_blocks, lambda: signal.raise_signal(signal.SIGINT))
        assert embed(workplace / "pump.csv", part, *given) == 130
    told = capsys.readouterr().err
    assert "--resume" in told
    assert str(part / "checkpoint.pt") in told
    assert (part / "embeddings.csv").read_text() == "earlier results"
    assert (part / "checkpoint.previous.pt").read_text() == "earlier checkpoint"
    done = torch.load(part / "checkpoint.pt", weights_only=True)["progress"][0]
    partial = (part / "embeddings.csv.partial").read_text().splitlines()
    num_read = done + (done > EMPTY)  # the empty row counts
    assert (len(partial), int(partial[-1].split(",")[0])) == (1 + num_read, num_read)
    assert done == WARMUP + num_blocks * block  # the block in which the interruption came was finished first
    assert f"after {done} of {ROWS - 1} rows" in told
    assert embed(workplace / "pump.csv", part, *given, "--resume") == 0
    for name in ("embeddings.csv", "weights.csv", "imputed.csv"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()
    assert {path.name for path in part.iterdir()} == {path.name for path in whole.iterdir()}
    first, second = (torch.load(path / "checkpoint.pt", weights_only=True)["model"] for path in (whole, part))
    assert all(torch.equal(first[name], second[name]) for name in first)
    spaces, again = summary_of(whole)["spaces"], summary_of(part)["spaces"]
    assert spaces == again
    assert ("walked on" in capsys.readouterr().out) == ("dynamic" in variant)
    assert embed(workplace / "pump.csv", part, *given, "--resume") == 0  # nothing is left to do
    assert (part / "embeddings.csv").read_bytes() == (whole / "embeddings.csv").read_bytes()


@pytest.mark.parametrize("variant", get_args(Variant))
def test_every_variant_is_that_of_the_presets(variant):
    names = {"static": ie_gplvm, "switching": sie_gplvm, "dynamic": die_gplvm, "dynamic-switching": dsie_gplvm}
    found = build_model(EmbedOptions(variant=variant, num_frequencies=10, seed=2), COLUMNS, 100)
    expected = names[variant](COLUMNS, 2, 10, generator=torch.Generator().manual_seed(2))
    assert found.settings == expected.settings._replace(capacity=100, seed=2)
    assert torch.equal(found.omega, expected.omega)
    rules = [dict(model.meta_learner.named_buffers()) for model in (found, expected)]
    assert rules[0].keys() == rules[1].keys()
    assert all(torch.equal(rules[0][name], rules[1][name]) for name in rules[0])


@pytest.mark.processor
def test_single_precision_stays_close(tmp_path, small):
    Y, _ = surface()
    Y += 0.3 * SCALES * torch.randn(Y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    small.write(tmp_path / "rows.csv", table(Y), HEADER)
    for dtype in ("float64", "float32"):
        assert embed(tmp_path / "rows.csv", tmp_path / dtype, *PLAIN, "--dtype", dtype, "--block_size", "10") == 0
    double, single = (summary_of(tmp_path / dtype) for dtype in ("float64", "float32"))
    assert single["options"]["dtype"] == "float32"
    assert single["best_expert"] == double["best_expert"]
    explained = [summary["spaces"]["one latent space"]["variance_explained"] for summary in (double, single)]
    # Both precisions embed the first rows in the same mode, and the best expert leads by 7 nats. The scores differ by
    # 2e-5, and that of double precision moves by 4e-5 when its rows move by 1e-6 of their size.
    assert explained[1] == pytest.approx(explained[0], abs=1e-3)


def test_what_came_before_a_failure_is_kept_and_the_row_is_named(workplace, monkeypatch, capsys):
    def fail():
        raise NumericalError("no density")

    given, out = [*PLAIN, "--label", "side"], workplace / "failed"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 23, fail)  # rows 51 to 70, then 72, for the empty row does not count
        assert embed(workplace / "pump.csv", out, *given) == 2
    assert "data row 74 (line 75): no density" in capsys.readouterr().err
    partial = (out / "embeddings.csv.partial").read_text().splitlines()
    assert len(partial) == 1 + 73
    assert partial[-1].startswith("73,,,")
    assert not (out / "summary.json").exists()
    assert embed(workplace / "pump.csv", out, *given, "--resume") == 0
    assert (out / "embeddings.csv").read_bytes() == (workplace / "full" / "embeddings.csv").read_bytes()


def test_checkpoints_are_written_while_rows_are_read(workplace, monkeypatch):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    saved = []
    checkpoint = command.EmbedFolder.checkpoint
    monkeypatch.setattr(
        command.EmbedFolder,
        "checkpoint",
        lambda self, run: (saved.append(run.progress.num_done), checkpoint(self, run)),
    )
    interrupt_after(monkeypatch, 4, kill)
    with pytest.raises(Killed):
        embed(workplace / "pump.csv", workplace / "killed", *PLAIN, "--label", "side", "--checkpoint_seconds", "0")
    assert saved == [WARMUP + 1, WARMUP + 2, WARMUP + 3, WARMUP + 3]  # the first comes with the tables


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_of_the_start_keeps_nothing(workplace, monkeypatch, capsys):
    monkeypatch.setattr(IEGPLVM, "start", lambda self, Y: signal.raise_signal(signal.SIGINT))
    assert embed(workplace / "pump.csv", workplace / "early", *PLAIN, "--label", "side") == 130
    assert "nothing is kept" in capsys.readouterr().err
    assert not (workplace / "early").exists()


def test_resume_refuses_what_does_not_fit(workplace, small, capsys):
    out, given = workplace / "full", [*PLAIN, "--label", "side", "--resume"]
    before = (out / "checkpoint.pt").read_bytes()
    rows = with_gaps()
    rows[85][2] = "0.1"
    small.write(workplace / "other.csv", rows, (*HEADER, "side"))
    wrong = {
        "other rows": [workplace / "other.csv", out, *given],
        "block_size = 1, not 2": [workplace / "pump.csv", out, *given, "--block_size", "2"],
        "seed = 0, not 3": [workplace / "pump.csv", out, *given, "--seed", "3"],
        "features": [workplace / "pump.csv", out, *given, "--features", "a,b,c,x"],
        "made from other rows": [workplace / "pump.csv", out, *given, "--features", "a,b,c"],
        "leave --resume out": [workplace / "pump.csv", workplace / "nowhere", *given],
    }
    for sentence, arguments in wrong.items():
        assert embed(*arguments) == 2
        told = capsys.readouterr().err.splitlines()[-1]
        assert sentence in told or "no column named x" in told
    for content in (b"", before[: len(before) // 2], b"not a checkpoint"):
        (workplace / "damaged").mkdir(exist_ok=True)
        (workplace / "damaged" / "checkpoint.pt").write_bytes(content)
        assert embed(workplace / "pump.csv", workplace / "damaged", *given) == 2
        assert "not a readable checkpoint" in capsys.readouterr().err
    torch.save({"format": "gp_ensembles stream"}, workplace / "damaged" / "checkpoint.pt")
    assert embed(workplace / "pump.csv", workplace / "damaged", *given) == 2
    assert "not a checkpoint of embed" in capsys.readouterr().err
    content = torch.load(out / "checkpoint.pt", weights_only=True)
    head = [content.pop(name) for name in ("format", "format_version", "manifest")]
    write_checkpoint(workplace / "damaged" / "checkpoint.pt", Kind(head[0], 99, "", ""), content)
    assert embed(workplace / "pump.csv", workplace / "damaged", *given) == 2
    assert "format 99" in capsys.readouterr().err
    write_checkpoint(workplace / "damaged" / "checkpoint.pt", Kind(head[0], head[1], "", ""), {**content, "model": {}})
    assert embed(workplace / "pump.csv", workplace / "damaged", *given) == 2
    assert "start anew" in capsys.readouterr().err
    assert (out / "checkpoint.pt").read_bytes() == before


def test_arrays_are_read_as_they_are(tmp_path, small):
    Y, sides = surface()
    whole = (100 * Y / SCALES).round().to(torch.int16)
    np.savez(tmp_path / "rows.npz", X=whole.numpy().reshape(ROWS, 2, 3), y=np.array(sides), other=np.arange(ROWS) / 7)
    np.save(tmp_path / "rows.npy", whole.numpy())
    given = [*PLAIN, "--block-size", "10"]
    assert embed(tmp_path / "rows.npz", tmp_path / "a", *given) == 0
    assert embed(tmp_path / "rows.npy", tmp_path / "b", *given) == 0
    assert embed(tmp_path / "rows.npz", tmp_path / "c", *given, "--label", "other", "--num_latent", "1") == 0
    model = IEGPLVM(rbf_features(2, 10, generator=torch.Generator().manual_seed(0)), COLUMNS)
    rows = whole.double()
    blocks = (rows - rows[:WARMUP].mean(0)).split([WARMUP, *[10] * ((ROWS - WARMUP) // 10)])
    expected = torch.cat(
        [part.embedding for part in (model.start(blocks[0]), *(model.update(b, 10) for b in blocks[1:]))]
    )
    for name in ("a", "b"):
        found = values_of(small.read(tmp_path / name / "embeddings.csv"), "reported_")
        assert torch.equal(found, expected)
    assert [row["label"] for row in small.read(tmp_path / "a" / "embeddings.csv")] == sides
    assert "label" not in small.read(tmp_path / "b" / "embeddings.csv")[0]
    assert not (tmp_path / "a" / "imputed.csv").exists()
    one = summary_of(tmp_path / "c")
    assert (one["label_kind"], one["spaces"]["as reported"]["neighbor_error"]) == ("quantity", None)
    assert (one["options"]["standardize"], one["features"][:2]) == (False, ["X0", "X1"])


def test_manifests_named_tables_configs_and_limits(tmp_path, small, capsys):
    Y, sides = surface()
    small.write(tmp_path / "rows.csv", table(Y, sides), (*HEADER, "side"))
    np.savez(tmp_path / "rows.npz", images=Y.numpy(), digit=np.arange(ROWS) % 3)
    entries = [
        {"name": "pump", "file": "rows.csv", "features": ["c", "a", "b"], "target": "side"},
        {"name": "digits", "file": "rows.npz", "features": "images", "target": "digit"},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": entries}))
    folder = ["--data-folder", str(tmp_path)]
    given = [*PLAIN, "--block_size", "20"]
    assert embed("pump", tmp_path / "a", *given, *folder) == 0
    summary = summary_of(tmp_path / "a")
    assert (summary["data"], summary["features"], summary["label"]) == ("pump", ["c", "a", "b"], "side")
    assert embed("digits", tmp_path / "b", *given, *folder, "--standardize", "--max_rows", "70") == 0
    summary = summary_of(tmp_path / "b")
    assert (summary["rows"], summary["num_categories"], summary["options"]["standardize"]) == (70, 3, True)
    (tmp_path / "some.yaml").write_text("warmup: 60\nvariant: switching\nnum_frequencies: 10\n")
    config = ["--config", str(tmp_path / "some.yaml"), "--progress", "false", "--pictures", "false"]
    assert embed("name:airline_passengers", tmp_path / "c", *config, "--block_size", "20", "--warmup", "55") == 0
    summary = summary_of(tmp_path / "c")
    assert (summary["label"], summary["warmup"], summary["options"]["variant"]) == ("passengers", 55, "switching")
    assert summary["label_kind"] == "quantity"
    capsys.readouterr()
    for arguments, sentence in (
        (["pumps", *folder], "did you mean pump"),
        (["pump", "--data-folder", str(tmp_path / "nowhere")], "manifest"),
        (["digits", *folder, "--features", "a"], "leave --features out"),
        (["name:airline_passengers", "--label", "month"], "passengers"),
        (["name:airline_passengers", "--features", "lag_7"], "lag_12"),
    ):
        assert embed(arguments[0], tmp_path / "d", *PLAIN, *arguments[1:]) == 2
        assert sentence in capsys.readouterr().err
    (tmp_path / "some.yaml").write_text("warmupp: 60\n")
    assert embed("name:airline_passengers", tmp_path / "d", *config) == 2
    assert "warmupp" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_the_warm_up_is_a_tenth_and_at_least_fifty(tmp_path, small):
    Y, _ = surface(620)
    small.write(tmp_path / "rows.csv", table(Y), HEADER)
    quick = ["--num_frequencies", "5", "--pictures", "false", "--progress", "false", "--block_size", "600"]
    assert embed(tmp_path / "rows.csv", tmp_path / "a", *quick) == 0
    assert embed(tmp_path / "rows.csv", tmp_path / "b", *quick, "--max_rows", "80") == 0
    assert (summary_of(tmp_path / "a")["warmup"], summary_of(tmp_path / "b")["warmup"]) == (62, 50)


def changed(row, column, text, header=HEADER, num_rows=ROWS):
    rows = table(surface()[0][:num_rows])
    rows[row][column] = text
    return rows, header


BAD_TABLES = {
    "text": (changed(3, 2, "on"), [], ["data row 4 (line 5), column c", "--label c", "--features"]),
    "infinite": (changed(70, 1, "inf"), [], ["data row 71", "column b", "infinite"]),
    "gap in the warm-up": (changed(7, 5, ""), [], ["data row 8 (line 9), column f", "complete", "--warmup"]),
    "too large": (changed(70, 1, "1e300"), [], ["data row 71", "column b", "1e+300", "too large"]),
    "too few rows": (changed(0, 0, "1", num_rows=50), [], ["50 rows", "--warmup"]),
    "ragged": ((table(surface()[0], ["x"] * ROWS), HEADER), [], ["data row 1", "7 cells under 6"]),
    "no rows": (([], HEADER), [], ["no data rows"]),
    "unknown label": (changed(0, 0, "1"), ["--label", "sid"], ["no column named sid"]),
    "unknown feature": (changed(0, 0, "1"), ["--features", "a,bb"], ["no column named bb", "did you mean b"]),
    "label embedded": (changed(0, 0, "1"), ["--label", "a", "--features", "a,b"], ["the label a"]),
    "feature twice": (changed(0, 0, "1"), ["--features", "a,a"], ["twice"]),
    "no feature": (changed(0, 0, "1"), ["--features", ","], ["no column to embed"]),
    "many dimensions": (changed(0, 0, "1"), ["--num_latent", "7"], ["--num_latent 7", "6 column(s)"]),
    "short warm-up": (changed(0, 0, "1"), ["--warmup", "5"], ["--warmup is 5"]),
    "no frequencies": (changed(0, 0, "1"), ["--num_frequencies", "0"], ["--num_frequencies must be at least 1"]),
    "bad seed": (changed(0, 0, "1"), ["--seed", "-1"], ["--seed"]),
    "bad probability": (changed(0, 0, "1"), ["--stay", "1.5"], ["--stay"]),
    "bad walk": (changed(0, 0, "1"), ["--random_walk_ratio", "0"], ["--random_walk_ratio"]),
    "no such device": (changed(0, 0, "1"), ["--device", "gpu"], ["device 'gpu'"]),
    "no such variant": (changed(0, 0, "1"), ["--variant", "lively"], ["variant"]),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_named_in_one_sentence(tmp_path, small, capsys, case):
    (rows, header), options, sentences = BAD_TABLES[case]
    small.write(tmp_path / "bad.csv", rows, header)
    assert embed(tmp_path / "bad.csv", tmp_path / "out", *PLAIN, *options) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert all(sentence in told for sentence in sentences), told
    assert not (tmp_path / "out").exists()


def test_bad_files_are_named(tmp_path, capsys):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "broken.npz").write_bytes(b"PK no archive")
    np.savez(tmp_path / "names.npz", Z=np.zeros((60, 3)))
    np.savez(tmp_path / "labels.npz", X=np.zeros((60, 3)), y=np.zeros(59))
    np.save(tmp_path / "flat.npy", np.zeros(60))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "objects.npy", np.array([[{}, None]]), allow_pickle=True)
    infinite = np.arange(180.0).reshape(60, 3)
    infinite[55, 1] = np.inf
    np.save(tmp_path / "infinite.npy", infinite)
    for name, sentence in {
        "absent.csv": "not there",
        "absent.npz": "not there",
        "empty.csv": "is empty",
        "broken.npz": "not a readable array file",
        "names.npz": "no array X of rows; it has Z",
        "labels.npz": "labels y have shape (59,) for 60 rows",
        "flat.npy": "shape (N, D)",
        "text.npy": "rows of numbers",
        "objects.npy": "not a readable array file",
        "infinite.npy": "data row 56, column X1",
    }.items():
        assert embed(tmp_path / name, tmp_path / "out") == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    np.save(tmp_path / "fine.npy", surface()[0].numpy())
    assert embed(tmp_path / "fine.npy", tmp_path / "empty.csv") == 2
    assert "choose another --out" in capsys.readouterr().err


def test_constant_columns_are_named_or_left_out(tmp_path, small, capsys):
    Y, _ = surface()
    Y[: WARMUP + 5, [1, 4]] = 7.0
    small.write(tmp_path / "rows.csv", table(Y), HEADER)
    assert embed(tmp_path / "rows.csv", tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "warm-up rows: b, e; leave them out with --drop-constant" in told
    assert embed(tmp_path / "rows.csv", tmp_path / "out", *PLAIN, "--drop-constant", "--block_size", "20") == 0
    summary = summary_of(tmp_path / "out")
    assert (summary["features"], summary["dropped_constant"]) == (["a", "c", "d", "f"], ["b", "e"])
    nearly = np.ones((60, 9))
    nearly[:, 8] = np.arange(60)
    np.save(tmp_path / "nearly.npy", nearly)
    assert embed(tmp_path / "nearly.npy", tmp_path / "out") == 2
    assert "X4 and 3 more; leave them out" in capsys.readouterr().err
    np.save(tmp_path / "same.npy", np.ones((60, 8)))
    assert embed(tmp_path / "same.npy", tmp_path / "out", *PLAIN, "--drop-constant") == 2
    assert "all columns are constant" in capsys.readouterr().err
    assert summary_of(tmp_path / "out") == summary  # earlier results stay


def test_a_large_offset_does_not_eat_the_digits_of_single_precision(tmp_path, small):
    Y, _ = surface()
    Y += 0.3 * SCALES * torch.randn(Y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = [*PLAIN, "--dtype", "float32", "--block_size", "10"]
    for name, offset in (("near", 0.0), ("far", 1e9)):
        rows = table(Y + offset * SCALES)
        rows[60][2] = ""
        small.write(tmp_path / f"{name}.csv", rows, HEADER)
        assert embed(tmp_path / f"{name}.csv", tmp_path / name, *given) == 0
    near, far = (summary_of(tmp_path / name)["spaces"]["one latent space"] for name in ("near", "far"))
    assert far["variance_explained"] == pytest.approx(near["variance_explained"], abs=0.03)
    (cell,) = small.read(tmp_path / "far" / "imputed.csv")
    assert abs(float(cell["mean"]) / SCALES[2] - 1e9 - Y[60, 2] / SCALES[2]) < 2


def test_a_dead_column_is_told(tmp_path, capsys):
    (tmp_path / "dead.csv").write_text(
        "a,b,c\n" + "\n".join(f"{i},,{i * i}" for i in range(60)) + "\n", encoding="utf-8"
    )
    assert embed(tmp_path / "dead.csv", tmp_path / "out") == 2
    assert "the column b has no value in the first 50 rows" in capsys.readouterr().err


def test_rows_of_any_dialect_are_read(tmp_path):
    (tmp_path / "semicolons.csv").write_text("a;b;a\n1;2,5;on\n-;3,5;off\n", encoding="utf-8")
    rows = read_csv_rows(tmp_path / "semicolons.csv", "a.2")
    assert rows.names == ("a", "b")
    assert rows.Y.nan_to_num(-1.0).tolist() == [[1.0, 2.5], [-1.0, 3.5]]
    assert rows.labels.categories == ("off", "on")


@pytest.mark.parametrize(("num_latent", "label"), [("1", "f"), ("3", "e")])
def test_pictures_of_other_dimensions_and_labels(tmp_path, small, capsys, num_latent, label):
    rows = table(surface()[0])
    for row in rows:
        row[4] = ""  # a label that nobody knows at all
    small.write(tmp_path / "rows.csv", rows, HEADER)
    given = [*QUICK, "--features", "a,b,c,d", "--label", label, "--num_latent", num_latent, "--block_size", "20"]
    assert embed(tmp_path / "rows.csv", tmp_path / "out", *given) == 0
    assert (tmp_path / "out" / "embedding.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "out" / "embedding.png") in capsys.readouterr().out
