"""Use without extras: a stream, scikit-learn on arrays, BoTorch, and a command that names its missing extra.

`python packaging/release.py --only build install` runs this file where nothing but the wheel is installed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import gp_ensembles as gpe

generator = torch.Generator().manual_seed(0)
table = gpe.data.drifting_sensor(120, jump_at=90, gap=(95, 99), generator=generator).table
model = gpe.OnlineModel(gpe.StreamConfig(gpe.light, warmup=60))
predictions = model.observe(table.X, table.y)
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model.pt")
    again = gpe.OnlineModel.load(Path(folder) / "model.pt")
assert torch.equal(again.predict(table.X[-5:]).mean, model.predict(table.X[-5:]).mean)

rows, targets = table.X[60:].numpy(), predictions.mean.numpy()
assert gpe.OnlineRegressor(gpe.light, random_state=0).fit(rows[:50], targets[:50]).predict(rows[50:]).shape == (10,)

places = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
posterior = gpe.ExactEnsembleModel(places, (6 * places).sin()).fit().posterior(places)
assert bool((posterior.mean - (6 * places).sin()).abs().max() < 0.02)

done = subprocess.run([sys.executable, "-m", "gp_ensembles", "demo"], capture_output=True, text=True, check=False)
assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
assert done.stderr.endswith('add it with: pip install "gp_ensembles[cli]"\n'), done
