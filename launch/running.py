"""One run from its checks to its report: what `milepost run` and `milepost quickstart` do."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Final

import orjson
import uvloop

from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import ModelConfig
from milepost.configs.seeds import derive_seed
from milepost.configs.topology import Topology
from milepost.launch.cache import (
    cached_folder,
    keep_if_possible,
    make_room,
    with_cached,
    with_checkpoint,
)
from milepost.launch.checking import last_line, lines_of, note_lines
from milepost.launch.display.opening import open_display
from milepost.launch.exits import Exit
from milepost.launch.fresh import write_fresh
from milepost.launch.visible import visible
from milepost.supervisor.checkpoints import (
    HUGGING_FACE,
    checkpoint_folder,
    last_checkpoint,
    put_back,
)
from milepost.supervisor.checks import (
    CHECKS,
    Check,
    Machine,
    Stage,
    Subject,
    run_checks,
)
from milepost.supervisor.cleanup.halves import remove_halves
from milepost.supervisor.cleanup.reaper import StillRunning
from milepost.supervisor.display import Display
from milepost.supervisor.folder import TOPOLOGY, FolderInUse, RunFolder
from milepost.supervisor.initial_model import INITIAL_MODEL
from milepost.supervisor.outcome import Outcome, RunStatus
from milepost.supervisor.run import supervise

RUNS: Final = Path("runs")
WARM_UP: Final = "-warm_up"
"""Behind the name of a run's folder: the run that made its starting checkpoint."""
SAME_SECOND_MAX: Final = 100
"""Runs of one name that may begin within one second."""
GOES_ON: Final = {
    RunStatus.STOPPED: "",
    RunStatus.FAILED: "once its cause is repaired, ",
    RunStatus.GUARD: "once its cause is repaired or the guard set otherwise, ",
}
"""Runs that can be gone on with, and when."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is written and shown.

    Attributes:
        out: the run's folder; None for a new one under runs/.
        resume: folder of a run to go on with, instead of `out`.
        plain: one line a step in place of the live display.
        json: the summary as JSON on standard output, everything else on standard error.
    """

    out: Path | None = None
    resume: Path | None = None
    plain: bool = False
    json: bool = False

    def say(self, text: str) -> None:
        """A line for a person."""
        # Transcripts, errors and tails of logs have words of models, tools and agents in them.
        print(visible(text), file=sys.stderr if self.json else sys.stdout, flush=True)

    @contextmanager
    def showing(self, topology: Topology) -> Iterator[Display]:
        """What shows the run while it goes on."""
        with ExitStack() as stack:
            if self.json:
                stack.enter_context(redirect_stdout(sys.stderr))
            yield stack.enter_context(open_display(topology, plain=self.plain or self.json))


def run_topology(topology: Topology, options: Options) -> Exit:
    """Check, start, watch and report one run.

    Raises:
        ConfigError: the fresh checkpoint could not be written, or the cache of them cannot be; or
            the folder to resume cannot be taken over.
    """
    folder = options.resume or options.out or new_folder(topology.run.name)
    try:
        with ExitStack() as stack:
            owned = taken_over(options.resume, stack) if options.resume is not None else None
            made_ready = make_ready(topology, folder, options)
            if isinstance(made_ready, Exit):
                return made_ready
            topology, resume_step = made_ready
            owned = owned or stack.enter_context(closing(RunFolder(folder)))
            display = stack.enter_context(options.showing(topology))
            outcome = uvloop.run(
                supervise(topology, folder=owned, resume_step=resume_step, display=display)
            )
    except (FolderInUse, StillRunning) as error:
        options.say(f"error: {error}")
        return Exit.REFUSED
    tell(outcome, options)
    return Exit(outcome.exit_code)


def taken_over(folder: Path, stack: ExitStack) -> RunFolder | None:
    """The folder of an earlier run, until `stack` closes; None when there is none to take over.

    Where a run stands is read by its only owner, when its orphans are gone: a trainer may still
    save in a folder that is somebody else's, or that its supervisor left.

    Raises:
        FolderInUse: another supervisor has it.
        StillRunning: that of the earlier run has not ended.
        ConfigError: it cannot be taken over.
    """
    if not (folder / TOPOLOGY).is_file():
        return None
    try:
        owned = stack.enter_context(closing(RunFolder(folder)))
        put_back(folder)
        remove_halves(folder)  # of a life that somebody else has cleaned up behind
    except OSError as error:
        what, remedy = f"the run cannot be taken over: {error}", "repair it, or choose another run"
        raise ConfigError([Problem(what, str(folder), remedy)]) from error
    return owned


def make_ready(
    topology: Topology, folder: Path, options: Options
) -> tuple[Topology, int | None] | Exit:
    """The checked topology with its model, and the step to go on from; or why there is no run.

    Raises:
        ConfigError: the fresh checkpoint could not be written, or the cache of them cannot be.
    """
    if (cached := with_cached(topology)) is not topology and cached.model and topology.model:
        options.say(f"starting checkpoint of `{topology.model.made_by}`: {cached.model.path}")
        topology = cached
    subject = Subject(topology, Machine.look(folder), folder, resuming=options.resume is not None)
    if not holds(CHECKS, subject, options):
        return Exit.REFUSED
    # Without a checkpoint a run that was stopped goes on from where it began: step 0.
    resume_step = (last_checkpoint(folder) or 0) if subject.resuming else None
    if topology.model is not None and not topology.model.path:
        resolved = make_checkpoint(topology, topology.model, folder, options)
        if isinstance(resolved, Exit):
            return resolved
        topology = resolved
        again = Subject(topology, subject.machine, None)
        if not holds((each for each in CHECKS if each.stage is Stage.FILES), again, options):
            return Exit.REFUSED
    return topology, resume_step


def holds(checks: Iterable[Check], subject: Subject, options: Options) -> bool:
    """Try the checks; say one line when all hold, and every problem when one does not."""
    results = list(run_checks(tuple(checks), subject))
    failed = any(checked.problems for checked in results)
    for checked in results:
        lines = lines_of(checked) if checked.problems else note_lines(checked)
        for line in lines:
            options.say(line)
    if failed or len(results) == len(CHECKS):
        options.say(last_line(results))
    return not failed


def new_folder(name: str) -> Path:
    """runs/NAME-TIME."""
    return unused(RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def unused(folder: Path) -> Path:
    """This folder, or the first with a number behind its name that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in (folder, *islice(numbered, SAME_SECOND_MAX)) if not path.exists())


def make_checkpoint(
    topology: Topology, model: ModelConfig, folder: Path, options: Options
) -> Topology | Exit:
    """The topology with `model.path` set; or how the run ended that should have made it.

    Raises:
        ConfigError: the fresh checkpoint could not be written, or the cache of them cannot be.
    """
    if model.made_by:
        made = made_by(model.made_by, folder, options)
        if isinstance(made, Exit):
            return made
        path = made
    else:
        path = folder.absolute() / INITIAL_MODEL
        seed = derive_seed(topology.run.seed, "model", "create")
        log = folder / "logs" / "create.log"
        write_fresh(model, path, seed, log, topology.system.timeouts.ready_s)
    return with_checkpoint(topology, model, path)


def made_by(recipe: str, folder: Path, options: Options) -> Path | Exit:
    """The checkpoint that `recipe` makes, from the cache or made now; or how that ended.

    Raises:
        ConfigError: the cache cannot be written.
    """
    warm_up = load_topology(recipe)
    kept = cached_folder(recipe, warm_up)
    if kept.is_dir():  # another run was faster since this one looked
        return kept
    make_room(kept)
    options.say(
        f"no starting checkpoint yet: `{recipe}` makes it now, in {warm_up.run.steps} steps"
    )
    own = unused(folder.with_name(folder.name + WARM_UP))
    code = run_topology(warm_up, Options(out=own, plain=options.plain, json=options.json))
    if code is not Exit.DONE:
        options.say(f"`{recipe}` made no checkpoint, so `{folder}` was not started")
        return code
    step = last_checkpoint(own)
    assert step is not None, "a run that is done has saved its last step"
    path, told = keep_if_possible(checkpoint_folder(own, step).absolute() / HUGGING_FACE, kept)
    options.say(told)
    return path


def tell(outcome: Outcome, options: Options) -> None:
    """How it ended early and who was the first cause; its summary, where JSON is asked for."""
    if outcome.cause is not None:
        cause = outcome.cause
        options.say(f"{outcome.status}: {cause.actor}: {cause.text}")
        for line in cause.log_tail:
            options.say(f"    {line}")
    if options.json:
        print(orjson.dumps(outcome.summary, option=orjson.OPT_INDENT_2, default=repr).decode())


def report(folder: Path, options: Options) -> None:
    """Write the report of a run that has ended, in whatever way, and say what is in it."""
    if not (folder / "summary.json").is_file():
        return
    # It imports what draws, and a run that is refused has nothing to draw.
    from milepost.launch.report import report_lines, write_report
    from milepost.launch.report.picture import DrawingFailed

    try:
        write_report(folder)
    except DrawingFailed as error:
        options.say(f"curve.png could not be drawn: {error}")
    except OSError as error:
        options.say(f"the report could not be written: {error}")
    options.say("")
    for line in report_lines(folder):
        options.say(line)
    status = orjson.loads((folder / "summary.json").read_bytes())["status"]
    if hint := how_to_go_on(folder, status):
        options.say(f"\n{hint}")


def how_to_go_on(folder: Path, status: str) -> str:
    """The command for a run that ended like this; empty when nothing of it is left to do."""
    step = last_checkpoint(folder)
    # Without a checkpoint a guard would trip over the same again.
    if status not in GOES_ON or (status == RunStatus.GUARD and step is None):
        return ""
    what = "to begin again" if step is None else f"to go on from step {step}"
    return f"{GOES_ON[RunStatus(status)]}{what}: milepost run --resume {folder}"
