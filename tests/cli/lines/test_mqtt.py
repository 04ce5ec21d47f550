"""From a broker to the model and back to the broker: mosquitto_sub | gp-ensembles stream - | mosquitto_pub."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

FIT = "fit_settings: {method: {LBFGS: {max_iterations: 5}}, num_samples: 1}"
YAML = f"ensemble: {{like: oebe, bases: [LinearBasis], {FIT}}}\nwarmup: 30\n"
TOOLS = ("mosquitto", "mosquitto_sub", "mosquitto_pub")
missing = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} of the system's mosquitto packages does not exist"),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def answers_to(port):
    """Whether the broker takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_predictions_come_back_from_the_broker(tmp_path):
    port = free_port()
    path = f"{os.environ['PATH']}:/usr/sbin"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    (tmp_path / "small.yaml").write_text(YAML)
    where = f"-h 127.0.0.1 -p {port}"
    stream = (
        f"{sys.executable} -m gp_ensembles stream - --format jsonl --target load --config {tmp_path / 'small.yaml'}"
    )
    stream = f"{stream} --out {tmp_path / 'run'}"
    pipe = f"mosquitto_sub {where} -t plant/rows | {stream} | mosquitto_pub {where} -t plant/said -l"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    predicted = tmp_path / "said.jsonl"
    with predicted.open("w") as kept:
        running = [subprocess.Popen([shutil.which("mosquitto", path=path), "-p", str(port)], **quiet)]
        try:
            wait_for(lambda: answers_to(port))
            listen = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-t", "plant/said"]
            running.append(subprocess.Popen(listen, stdout=kept, env=environment))
            running.append(subprocess.Popen(["bash", "-c", pipe], start_new_session=True, **quiet))
            publish = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-t", "plant/rows", "-l", "-q", "1"]
            generator = torch.Generator().manual_seed(0)
            wind = torch.randn(60, generator=generator).tolist()
            rows = [json.dumps({"id": k, "wind": w, "load": 3 * w + 1}) for k, w in enumerate(wind)]
            probe = json.dumps({"not": []})  # malformed: until one is counted nobody listens yet
            checkpoint = tmp_path / "run"

            def listening():
                subprocess.run(publish, input=probe + "\n", text=True, env=environment, check=True)
                return checkpoint.exists()

            wait_for(listening, 120)
            time.sleep(1.0)
            subprocess.run(publish, input="\n".join(rows) + "\n", text=True, env=environment, check=True)
            wait_for(lambda: len(predicted.read_text().splitlines()) >= 60, 120)
        finally:
            for process in reversed(running):
                if process.poll() is None:
                    if process is running[-1] and len(running) == 3:
                        os.killpg(process.pid, signal.SIGTERM)
                    else:
                        process.terminate()
                process.wait(30)
    answers = [json.loads(line) for line in predicted.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == list(range(60))
    for answer, w in zip(answers[31:], wind[31:], strict=True):
        assert answer["mean"] == pytest.approx(3 * w + 1, abs=0.2)
