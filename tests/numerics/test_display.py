"""Pictures of ensembles and predictions for notebooks are true and safe to show."""

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
