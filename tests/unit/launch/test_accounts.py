"""The books of a run: groups balance, each sampled token is in one account, or it is an alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from milepost.launch.accounts import account_of, lines_of
from milepost.launch.cli import main

STATISTICS: dict[str, dict[str, Any]] = {
    "rollout": {
        "issued": 20,
        "trained": 8,
        "dropped": {"zero_spread": 3},
        "open": 5,
        "stored": 4,
        "owners": {"agent-0": {"members": 7, "since_s": 90.0}},
    },
    "buffer": {
        "tokens_by_account": {"trained": 500, "filtered_zero_spread": 100, "stopped": 5},
        "tokens_held": 200,
        "tokens_at_risk": 10,
    },
    "session-0": {"tokens_at_risk": 90, "accounts_untold": {"tried_again": 20, "stopped": 3}},
    "session-1": {"tokens_at_risk": 0, "accounts_untold": {"evaluated": 50}},
    "engine-0": {"tokens_at_risk": 27, "accounts_untold": {}},
}


def test_every_sampled_token_is_in_exactly_one_account() -> None:
    """The buffer's journal has what was told; what was not is in one process, and counted there."""
    account = account_of(STATISTICS)
    assert account is not None
    assert account.tokens == {
        "trained": 500,
        "filtered_zero_spread": 100,
        "stopped": 8,
        "held": 200,
        "tried_again": 20,
        "evaluated": 50,
        "under_way": 127,
    }


def test_the_tables_say_who_has_what_and_since_when() -> None:
    account = account_of(STATISTICS)
    assert account is not None
    lines = [" ".join(line.split()) for line in lines_of(account, now_s=100.0)]
    assert "issued 20" in lines
    assert "agent-0 7 10.0s" in lines
    assert "trained 500 49.8%" in lines
    assert not any("nowhere" in line for line in lines)


def test_a_run_without_a_rollout_actor_has_no_books() -> None:
    assert account_of({"engine-0": {}}) is None


@pytest.mark.parametrize(("issued", "code"), [(20, 0), (21, 1)])
def test_the_folder_of_an_ended_run_has_its_books(
    issued: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An imbalance is an alarm: another exit code, and a line that counts what is nowhere."""
    rollout = {**STATISTICS["rollout"], "issued": issued}
    summary = {"statistics": {**STATISTICS, "rollout": rollout}}
    (tmp_path / "summary.json").write_bytes(orjson.dumps(summary))
    assert main(["account", "--run", str(tmp_path)]) == code
    assert ("+1 groups are nowhere" in capsys.readouterr().out) == bool(code)
    assert main(["account", "--run", str(tmp_path), "--json"]) == code
    assert orjson.loads(capsys.readouterr().out)["balance"] == issued - 20
