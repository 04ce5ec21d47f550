"""Threads: one learns, a second is refused and changes nothing, readers see what stands between two rows."""

import copy
import pickle
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis, PolynomialBasis
from gp_ensembles.ensembles.presets import e_doebe, oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARMUP, ROWS = 40, 80
SMALL = {
    "row by row": replace(oebe, bases=(LinearBasis(),)),
    "in blocks": replace(e_doebe, bases=(LinearBasis(), PolynomialBasis(orders=(2,))), random_walk_variances=(0.001,)),
}


@pytest.fixture(params=SMALL)
def model(request):
    """A fitted model."""
    X, y = rows()
    return OnlineModel(StreamConfig(SMALL[request.param], warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])


@pytest.fixture
def restless():
    """Threads change places as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def rows():
    X = torch.linspace(0, 20, WARMUP + ROWS, dtype=torch.float64, device="cpu")
    return torch.stack([X.sin(), X.cos()], -1), 3 * X.sin() + 0.1 * X


def reported(model, X):
    mixture = model.predict(X)
    mean, variance = mixture.moments()
    return float(mean[0]), float(variance[0])


def run(*workers):
    """Run functions in threads; raises the first error of one."""
    errors = []

    def kept(worker):
        try:
            worker()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=kept, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_a_second_thread_that_learns_is_refused_and_changes_nothing(model):
    X, y = rows()
    before = copy.deepcopy(model)
    for one in (model, model.online):
        with one.access.writing, pytest.raises(RuntimeError, match="only one thread may learn at a time"):
            run(lambda one=one: one.observe(X[-1:], y[-1:]))
    with model.access.writing, pytest.raises(RuntimeError, match=r"OnlineModel\.fit"):
        run(lambda: model.fit(X, y))
    want, got = (one.observe(X[WARMUP:], y[WARMUP:]) for one in (before, model))
    assert torch.equal(want.log_prob, got.log_prob)


@pytest.mark.usefixtures("restless")
def test_two_threads_that_go_on_until_they_are_let_leave_what_one_would_leave(model):
    X, y = rows()
    x, target = X[-1:], y[-1:]
    alone = copy.deepcopy(model)
    for _ in range(ROWS):
        alone.observe(x, target)

    refused: list[str] = []
    deadline = time.monotonic() + 60

    def learn():
        left = ROWS // 2
        while left and time.monotonic() < deadline:
            try:
                model.observe(x, target)
                left -= 1
            except RuntimeError as error:
                refused.append(str(error))
                time.sleep(1e-4)

    run(learn, learn)
    assert all("one thread may learn at a time" in words for words in refused)
    assert model.num_rows == alone.num_rows
    assert reported(model, X[:1]) == reported(alone, X[:1])
    assert model.weights == alone.weights


@pytest.mark.usefixtures("restless")
def test_readers_beside_one_writer_see_the_model_between_two_rows(model):
    X, y = rows()
    place = X[7:8]
    known, step = {reported(model, place)}, copy.deepcopy(model)
    for k in range(WARMUP, WARMUP + ROWS):
        step.observe(X[k : k + 1], y[k : k + 1])
        known.add(reported(step, place))
    assert len(known) == ROWS + 1
    seen, is_over = set(), threading.Event()

    def write():
        try:
            for k in range(WARMUP, WARMUP + ROWS):
                model.observe(X[k : k + 1], y[k : k + 1])
        finally:
            is_over.set()

    def read():
        while not is_over.is_set():
            seen.add(reported(model, place))

    run(write, read, read)
    assert seen <= known
    assert reported(model, place) == reported(step, place)


def test_a_copy_is_of_one_moment_and_has_turns_of_its_own(model, tmp_path):
    X, y = rows()
    with model.access.reading:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    model.save(tmp_path / "model.pt")
    copies.append(OnlineModel.load(tmp_path / "model.pt"))
    with model.access.writing, model.online.access.writing:
        for other in copies:
            run(lambda other=other: other.observe(X[WARMUP:], y[WARMUP:]))
    want = model.observe(X[WARMUP:], y[WARMUP:])
    assert all(reported(other, X[:1]) == reported(model, X[:1]) for other in copies)
    assert want.log_prob.shape == (ROWS,)
