"""Real processes: Prometheus reads a run, beside it from its start or attached later."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import pytest
from proc.runs import environment, running, topology
from proc.test_supervisor_attach import WORKER, going_on, milepost

COMMAND: Final = "import sys; from milepost.launch.cli import main; sys.exit(main())"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def scrape(port: int, key: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.timeout(90)
def test_a_run_is_read_from_its_start_by_who_has_the_key(tmp_path: Path) -> None:
    key, port = tmp_path / "key", free_port()
    key.write_text("open sesame\n")
    table = f"[tracking.prometheus]\nport = {port}\nkey_file = {json.dumps(str(key))}\n"
    with running(tmp_path, topology(WORKER + table, steps=1000000)) as run:
        run.begun()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(port)
        text = scrape(port, "open sesame")
        assert "milepost_up 1.0" in text
        assert 'milepost_actor_state{actor="worker-0",kind="worker",state="running"} 1.0' in text
        assert f'run_id="{run.run_id}"' in text
        assert milepost("stop", "--run", str(run.folder)).returncode == 0
        run.end()
    with pytest.raises(urllib.error.URLError):
        scrape(port, "open sesame")


@pytest.mark.timeout(90)
def test_it_attaches_to_a_run_that_knows_nothing_of_it_and_ends_with_it(tmp_path: Path) -> None:
    with going_on(tmp_path) as run:
        words = ["prometheus", "--listen", "127.0.0.1:0", "--run", str(run.folder)]
        attached = subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        assert attached.stdout is not None
        said = attached.stdout.readline()
        port = int(said.partition("/metrics")[0].rpartition(":")[2])
        assert "milepost_run_step" in scrape(port)
        assert milepost("stop", "--run", str(run.folder)).returncode == 0
        _, errors = attached.communicate(timeout=30)
    assert attached.returncode == 0
    assert "has ended" in errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--listen", "0.0.0.0:9"], "everybody who reaches 0.0.0.0 may read the metrics"),
        (["--listen", "nowhere"], "cannot listen on nowhere"),
    ],
)
def test_what_cannot_be_served_is_refused(words: list[str], told: str) -> None:
    done = milepost("prometheus", *words)
    assert done.returncode == 2
    assert told in done.stderr
