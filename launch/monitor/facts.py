"""`milepost monitor --json`: the whole picture as one object. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import to_builtins

from milepost.launch.monitor.drawings import resampled
from milepost.launch.monitor.model import Model

EVENTS: Final = 50
POINTS: Final = 256
"""Of each curve; more are averaged."""


def facts_of(model: Model) -> dict[str, Any]:
    """Everything that the screen shows, with the names that it has there."""
    account = model.account
    return {
        "run": {
            **to_builtins(model.about),
            "run_id": model.run_id,
            "phase": model.phase,
            "elapsed_s": model.elapsed_s,
            "step": model.step,
            "left_s": model.progress.left_s,
            "silent": model.silent,
            "ending": model.ending,
            "status": (model.summary or {}).get("status"),
        },
        "contracts": [to_builtins(lamp) for lamp in model.lamps],
        "reading": model.progress.reading,
        "tokens_per_s": {
            "rollout": model.progress.sampled_per_s or model.curves["rollout"].last,
            "trainer": model.progress.trained_per_s or model.curves["trainer"].last,
        },
        "curves": {
            name: {
                "last": curve.last,
                "step": curve.step,
                "points": resampled(curve.values, min(POINTS, len(curve.values))),
            }
            for name, curve in model.curves.items()
            if curve.last is not None
        },
        "versions": {
            "published": [list(change) for change in model.published],
            **{name: [list(change) for change in found] for name, found in model.served.items()},
        },
        "buffer": model.buffer,
        "account": None
        if account is None
        else {**to_builtins(account), "balance": account.balance},
        "actors": [to_builtins(row) for row in model.actors],
        "queues": [to_builtins(queue) for queue in model.queues],
        "in_flight": [to_builtins(one) for one in model.trajectories.in_flight],
        "events": [to_builtins(event) for event in list(model.events)[-EVENTS:]],
    }
