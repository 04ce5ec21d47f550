"""What ensembles and predictions say of themselves is short, true and safe to show."""

import re
from xml.etree import ElementTree

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import FixedShare


@pytest.fixture
def online():
    features = LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64))
    experts = [GaussianExpert(features, transition=RandomWalk(10.0 ** -(k + 1))) for k in range(9)]
    return OnlineEnsemble(Ensemble(experts, FixedShare(), [f"<walk {k}>" for k in range(9)]))


def rows(num_rows=30):
    X = torch.linspace(0, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
    return X, (9 * X.squeeze(-1)).sin()


def test_an_ensemble_says_its_experts_weights_and_rule_in_ten_lines(online):
    online.observe(*rows())
    lines = repr(online).splitlines()
    assert lines[0] == "OnlineEnsemble of 9 experts under FixedShare"
    assert len(lines) <= 10
    assert lines[-1].strip() == "and 3 more"
    shown = [float(line.split()[0]) for line in lines[1:-1]]
    heaviest = online.log_weights.exp().sort(descending=True).values[:6].tolist()
    assert shown == [pytest.approx(weight, abs=5e-4) for weight in heaviest]
    assert repr(online.ensemble).splitlines()[0] == "Ensemble of 9 experts under FixedShare"


def test_predictions_say_their_shapes_and_score(online):
    X, y = rows()
    y[3] = torch.nan
    predictions = online.observe(X, y)
    score = f"{float(predictions.log_prob.nanmean()):.3f}"
    head = f"EnsemblePredictions of 30 rows by 9 experts, mean log score {score} nats per row"
    assert repr(predictions).splitlines()[0] == head


def test_pictures_for_notebooks_are_well_formed_and_escape_names(online):
    predictions = online.observe(*rows())
    table = ElementTree.fromstring(online._repr_html_())
    names = [cell.text for cell in table.iter("td") if cell.text and "walk" in cell.text]
    assert sorted(names) == sorted(online.names)
    picture = ElementTree.fromstring(predictions._repr_html_().replace("<br>", "<br/>"))
    line = next(picture.iter("polyline")).attrib["points"].split()
    assert len(line) == 30
    heights = torch.tensor([float(point.split(",")[1]) for point in line], dtype=torch.float64)
    order = torch.corrcoef(torch.stack([heights, predictions.mean]))[0, 1]
    assert float(order) == pytest.approx(-1, abs=1e-3)  # upwards is a smaller number of pixels
    assert not re.search(r"nan|inf", predictions._repr_html_())
