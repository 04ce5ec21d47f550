"""Pictures of kernels: densities that integrate to their weights, and opacity by weight."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from studies.maskerade.spectra import plot_spectra

WEIGHTS = torch.tensor([[0.7, 0.3], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
MEANS = torch.tensor([[0.0, 3.0], [1.0, 0.0], [2.0, 0.1]], dtype=torch.float64)
SCALES = torch.tensor([[0.5, 1e-3], [0.2, 0.0], [0.3, 0.3]], dtype=torch.float64)
LOG_WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()


def drawn(figure):
    figure.canvas.draw()
    return figure.axes[0]


@pytest.mark.parametrize("kernel", range(3))
def test_a_spectrum_integrates_to_its_weights_over_positive_frequencies(kernel):
    axis = drawn(plot_spectra(*(values[kernel : kernel + 1] for values in (WEIGHTS, MEANS, SCALES)), [0.0]))
    (line,) = axis.lines
    f, density = line.get_xdata(), line.get_ydata()
    assert f[0] == 0
    assert np.trapezoid(density, f) == pytest.approx(float(WEIGHTS[kernel].sum()), rel=2e-3)


def test_heights_are_those_of_the_mixture_and_its_mirror_image():
    axis = drawn(plot_spectra(WEIGHTS[2:], MEANS[2:], SCALES[2:], [-3.0]))
    f, density = axis.lines[0].get_data()
    expected = sum(0.5 * (norm.pdf(f, m, 0.3) + norm.pdf(f, -m, 0.3)) for m in (2.0, 0.1))
    np.testing.assert_allclose(density, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": WEIGHTS[:2]}, "do not fit"),
        ({"log_weights": LOG_WEIGHTS[:2]}, "do not fit"),
        ({"max_kernels": 0}, "max_kernels"),
        ({"scales": 0.0 * SCALES}, "positive finite scales"),
        ({"weights": -WEIGHTS}, "not negative"),
        ({"means": MEANS * math.nan}, "finite means"),
        ({"log_weights": LOG_WEIGHTS - math.inf}, "no kernel has a weight"),
        ({"log_weights": LOG_WEIGHTS * math.nan}, "no kernel has a weight"),
        ({"weights": WEIGHTS[0]}, "2 axes"),
    ],
)
def test_what_is_no_spectrum_is_refused(change, words):
    given = {"weights": WEIGHTS, "means": MEANS, "scales": SCALES, "log_weights": LOG_WEIGHTS} | change
    positional = [given.pop(name) for name in ("weights", "means", "scales", "log_weights")]
    with pytest.raises(ValueError, match=words):
        plot_spectra(*positional, **given)
