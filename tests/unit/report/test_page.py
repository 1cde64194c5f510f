"""The picture and the page: whole, safe against what a model wrote, and light."""

from __future__ import annotations

import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest

from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.launch.report import write_report
from milepost.launch.report.charts import Panel, Series
from milepost.launch.report.page import page
from milepost.launch.report.panels import panels
from milepost.launch.report.picture import DrawingFailed, Order, draw
from milepost.launch.report.record import read_record
from milepost.messages.evaluator import Transcript

VOID = {"meta", "path", "use", "br"}


class Balance(HTMLParser):
    """Fails on a tag that is closed and was not opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_report_is_a_picture_and_one_page_that_needs_nothing_else(run_folder: Path) -> None:
    write_report(run_folder)
    png = (run_folder / "curve.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png[:4] == b"\x89PNG"
    assert min(width, height) > 500
    text = (run_folder / "report.html").read_text()
    assert text.count("<svg") == 3
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", text), "nothing is fetched"
    assert len(text) < 400_000
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    for word in (
        "What changed",
        "96%",
        "before: 11%",
        "lookup(name=mia, field=pet)",
        "report.html",
    ):
        assert any(word in each for each in balance.words), word


def test_what_a_model_wrote_cannot_become_markup(run_folder: Path) -> None:
    """Replies of a model under training are arbitrary text; the page is opened in a browser."""
    evil = "<script>alert(1)</script>"
    talk = Transcript(
        version=0,
        greedy=False,
        prompt_id=evil,
        reward=0.0,
        messages=[
            {"role": evil, "content": evil},
            {"role": "assistant", "content": evil},
            {"role": "tool", "content": evil},
        ],
    )
    text = page(read_record(run_folder), [], [("before", talk)])
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 3


def test_a_failed_run_names_its_cause_on_the_page(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    cause = {"actor": "engine-0", "text": "was killed by SIGKILL"}
    (run_folder / "summary.json").write_text(
        json.dumps({**summary, "status": "failed", "cause": cause})
    )
    assert "engine-0: was killed by SIGKILL" in page(read_record(run_folder), [], [])


def test_curves_are_of_steps_and_time_and_staleness(run_folder: Path) -> None:
    by_step, by_time, staleness = panels(read_record(run_folder))
    assert [series.name for series in by_step.series] == ["success", "reward"]
    assert [mark.name for mark in by_step.marks] == [
        "held out, before: 0.11",
        "held out, after: 0.96",
    ]
    assert by_time.series[0].y == by_step.series[0].y
    assert by_time.x_name == "seconds of training"
    assert [series.name for series in staleness.series] == ["mean", "oldest"]


def test_a_supervised_run_shows_its_loss_and_an_empty_one_nothing(run_folder: Path) -> None:
    """The rows of a supervised run carry a reward of zero, which means nothing."""
    path = run_folder / "metrics.jsonl"
    topology = load_topology("lookup_warmup")
    (run_folder / "topology.toml").write_text(dump_topology(topology))
    metrics = {"train/nll": 0.3, "train/loss": 0.3, "rollout/raw_reward": 0.0, "train/version": 1}
    line = {"step": 0, "time": 5.0, "source": "trainer-0", **metrics}
    path.write_text(json.dumps(line) + "\n")
    assert [panel.title for panel in panels(read_record(run_folder))] == [
        "loss, nats a token",
        "loss, nats a token",
    ]
    path.write_text("")
    assert panels(read_record(run_folder)) == []


def test_a_curve_that_cannot_be_drawn_says_why(tmp_path: Path) -> None:
    panel = Panel(title="t", x_name="x", series=[Series(name="s", x=[1.0], y=[1.0, 2.0])])
    order = Order(title="t", panels=[panel], png=str(tmp_path / "c.png"))
    with pytest.raises(DrawingFailed, match=r"exit code 1: .*must have same first dimension"):
        draw(order)
