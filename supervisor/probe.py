"""The child process that loads the user's code and says what is wrong with it.

`python -P -m milepost.supervisor.probe DESCRIPTOR` reads the targets from its standard input and
writes one line to the descriptor for each, as soon as it is known. Whatever the user's code prints
or breaks, the lines written before are whole.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from milepost.actors.lifeline import tie_to_parent
from milepost.configs.read import home_of
from milepost.configs.suggest import did_you_mean
from milepost.messages.shared import Prompt

EXIT_S: Final = 5
"""For what modules do at the end of their process."""


class Target(Struct, frozen=True):
    """One thing to load."""

    kind: Literal[
        "agent",
        "evaluation",
        "prompts",
        "reward",
        "matcher",
        "leaves",
        "filter",
        "create",
        "core",
        "device",
        "template",
        "lengths",
        "kept",
        "checkpoint",
    ]
    path: str
    """`module:name`, a device, or the folder of a model or a checkpoint."""
    where: str
    options: dict[str, Any] = {}


class Fault(Struct, frozen=True):
    """What is wrong, and what to do."""

    what: str
    remedy: str = ""
    where: str = ""
    """Not empty: there, and not where the target stands."""


class Probe(Struct, frozen=True):
    """What is wrong with one target; nothing, if it can be used."""

    faults: list[Fault]


CALLS: Final[dict[str, tuple[str, ...]]] = {
    "prompts": ("split", "seed", "options"),
    "reward": ("given",),
    "matcher": ("stored", "replayed"),
    "leaves": ("leaves",),
    "filter": ("candidate",),
    "create": ("folder", "seed", "options"),
    "core": ("context",),
}
"""Kind of function -> the arguments it is called with."""


def main() -> None:
    """Load every target in order."""
    tie_to_parent()
    targets = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Target])
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - not for what the user's code starts
    with open(descriptor, "ab", buffering=0) as answers:
        answers.writelines(
            msgspec.json.encode(Probe(list(look_at(target)))) + b"\n" for target in targets
        )


def look_at(target: Target) -> Iterator[Fault]:
    """Everything that is wrong with one target."""
    if look := WITHOUT_CODE.get(target.kind):
        yield from look(target)
        return
    try:
        found = resolve(target.path)
    except LoadError as error:
        yield error.fault
        return
    if target.kind == "agent":
        yield from _agent(target, found)
        return
    if target.kind == "evaluation":
        yield from _evaluation(target, found)
        return
    yield from _callable(target, found)


class LoadError(Exception):
    """The import path leads nowhere."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what)
        self.fault = fault


def resolve(path: str) -> Any:
    """What `module:name` names.

    Raises:
        LoadError: malformed, not importable, or no such name in the module.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise LoadError(Fault(f'"{path}" is no import path', "write module:name"))
    try:
        module = import_module(module_name)
    except Exception as error:
        raise LoadError(_import_fault(module_name, error)) from error
    if not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        fault = Fault(f"module {module_name} has no `{name}`", did_you_mean(name, known))
        raise LoadError(fault)
    return getattr(module, name)


def _import_fault(module_name: str, error: Exception) -> Fault:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module_name}.".startswith(f"{missing}."):
        remedy = "install it, or put its folder on PYTHONPATH"
        return Fault(f"no module called `{missing}`", remedy)
    what = f"importing {module_name} raised {type(error).__name__}: {error}"
    return Fault(what, f"see {_place(error)}")


def _place(error: Exception) -> str:
    """The line that raised it, or that is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def _agent(target: Target, found: Any) -> Iterator[Fault]:
    base: Any = import_module("milepost.actors.agent").Agent
    if not isinstance(found, type) or not issubclass(found, base):
        yield Fault(f"`{target.path}` is no subclass of milepost.actors.agent.Agent", "derive it")
        return
    run: Any = getattr(found, "run", None)
    if run is getattr(base, "run", None):
        yield Fault(f"`{target.path}` has no method run", "add `async def run(self, episode)`")
    elif not inspect.iscoroutinefunction(run):
        yield Fault(f"`{target.path}.run` is not async", "write `async def run(self, episode)`")
    elif problem := _does_not_take(run, ("self", "episode")):
        yield Fault(f"`{target.path}.run` {problem}", "write `async def run(self, episode)`")
    if refused := list(_options(target, found, "$.actors.agent.options")):
        yield from refused
    else:
        yield from _made(target)


def _made(target: Target) -> Iterator[Fault]:
    """Make the agent as its actor will: on an event loop, and without starting it."""
    actor: Any = import_module("milepost.actors.agent.run")

    async def make() -> None:
        actor.make_agent(target.path, target.options["options"], target.options["data_options"])

    # Never closed, as the actor's: that would wait for whatever the agent gave its threads to do.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(make())
    except actor.AgentError as error:
        yield Fault(str(error), "make $.actors.agent.options what its __init__ takes")
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is the answer
        what = f"making `{target.path}` raised {type(error).__name__}: {error}"
        remedy = f"see {_place(error)}; what may fail for a while belongs into `start`"
        yield Fault(what, remedy)


def _evaluation(target: Target, found: Any) -> Iterator[Fault]:
    base: Any = import_module("milepost.actors.evaluator.external").ExternalEvaluation
    if not isinstance(found, type) or not issubclass(found, base):
        yield Fault(f"`{target.path}` is no subclass of milepost.ExternalEvaluation", "derive it")
        return
    remedy = "write `def evaluate(self, checkpoint, version)`"
    evaluate: Any = getattr(found, "evaluate", None)
    if evaluate is base.evaluate:
        yield Fault(f"`{target.path}` has no method evaluate", remedy)
    elif problem := _does_not_take(evaluate, ("self", "checkpoint", "version")):
        yield Fault(f"`{target.path}.evaluate` {problem}", remedy)
    yield from _options(target, found, "$.actors.evaluator.external_options")


def _options(target: Target, found: Callable[..., Any], where: str) -> Iterator[Fault]:
    try:
        inspect.signature(found).bind(**target.options["options"])
    except TypeError as error:
        remedy = f"make {where} the keyword arguments of its __init__"
        yield Fault(f"`{target.path}` does not take its options: {error}", remedy)


def _callable(target: Target, found: Any) -> Iterator[Fault]:
    if not callable(found):
        yield Fault(f"`{target.path}` is {type(found).__name__}, not a function")
        return
    arguments = CALLS[target.kind]
    if problem := _does_not_take(found, arguments):
        yield Fault(f"`{target.path}` {problem}", f"it is called as f({', '.join(arguments)})")
    elif target.kind == "prompts":
        yield from _prompts(target, found)
    elif target.kind == "filter":
        yield from _filter(target, found)


def _does_not_take(function: Callable[..., Any], arguments: tuple[str, ...]) -> str:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        return f"does not take ({', '.join(arguments)}): {error}"
    except ValueError:
        # Built-in functions may have no signature to look at.
        return ""
    return ""


def _prompts(target: Target, function: Callable[..., Any]) -> Iterator[Fault]:
    options = target.options
    call = f"{target.path} for split {options['split']!r}"
    try:
        first = list(islice(function(options["split"], options["seed"], options["options"]), 1))
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is the answer
        yield Fault(f"{call} raised {type(error).__name__}: {error}", f"see {_place(error)}")
        return
    if not first:
        yield Fault(f"{call} yields nothing")
    elif not isinstance(first[0], Prompt):
        what = f"{call} yields {type(first[0]).__name__}"
        yield Fault(what, "yield milepost.messages.shared.Prompt")


def _filter(target: Target, function: Callable[..., Any]) -> Iterator[Fault]:
    candidate: Any = import_module("milepost.actors.buffer.candidates").EXAMPLE
    call = f"{target.path}({candidate.group_id})"
    try:
        reason = function(candidate)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; it is the answer
        remedy = "metrics, label and metadata are empty in this trial: read them with .get"
        yield Fault(f"{call} raised {type(error).__name__}: {error}", remedy)
        return
    if not isinstance(reason, str):
        what = f"{call} gave {type(reason).__name__}"
        yield Fault(what, "return the reason to drop the group, or an empty string to keep it")


def _device(target: Target) -> Iterator[Fault]:
    device = target.path
    cuda = import_module("torch").cuda
    count = cuda.device_count() if cuda.is_available() else 0
    index = int(device.partition(":")[2] or 0)
    if index >= count:
        yield Fault(f'device "{device}": this machine has {count} CUDA devices', 'set "cpu"')


def _template(target: Target) -> Iterator[Fault]:
    report: Any = import_module("milepost.actors.session.text.report").report
    folder, family = Path(home_of(target.path)), target.options["family"]
    found = report(folder, family, target.options["options"])
    remedy = f"see `milepost check-template --tokenizer {folder} --family {family}`"
    if "error" in found:
        yield Fault(f"no session of family {family} can be made: {found['error']}", remedy)
        return
    for what in found["faults"][:1]:
        yield Fault(f"family {family} does not fit the chat template: {what}", remedy)
    needed, rows = found["rows_needed"], target.options["vocabulary"]
    if rows and needed > rows:
        what = f"the tokenizer needs {needed} rows, and the model has {rows} (vocab_size)"
        yield Fault(what, "give the tokenizer that the model was made with", "$.model.path")


def _lengths(target: Target) -> Iterator[Fault]:
    too_long: Any = import_module("milepost.actors.session.lengths").too_long
    try:
        found = list(too_long(target.options))
    except Exception as error:  # noqa: BLE001 - prompts come from user code, which may raise anything
        what = f"reading the prompts raised {type(error).__name__}: {error}"
        yield Fault(what, f"see {_place(error)}")
        return
    for what in found:
        yield Fault(what, "shorten or drop them, or raise the limit")


def _kept(target: Target) -> Iterator[Fault]:
    prompts: Any = import_module("milepost.actors.rollout.promptset")
    try:
        what = prompts.function_differs(target.path, target.options)
    except Exception as error:  # noqa: BLE001 - prompts come from user code, which may raise anything
        told = f"reading the prompts raised {type(error).__name__}: {error}"
        yield Fault(told, f"see {_place(error)}")
        return
    if what:
        yield Fault(what, prompts.KEEP)


def _checkpoint(target: Target) -> Iterator[Fault]:
    faults_of: Any = import_module("milepost.actors.trainer.fsdp.checkpoint").checkpoint_faults
    folder, options = Path(target.path), target.options
    try:
        found = list(faults_of(folder, Path(options["model"]), options["family"]))
    except Exception as error:  # noqa: BLE001 - torch and transformers read what anybody wrote
        what = f"comparing {folder} with the model raised {type(error).__name__}: {error}"
        yield Fault(what, f"see {_place(error)}")
        return
    for what, is_damage in found:
        if is_damage:
            yield Fault(f"the newest checkpoint is damaged: {what}", options["earlier"])
        else:
            told = f"{folder} is no checkpoint of this model: it {what}"
            yield Fault(told, options["other_model"], "$.model.path")


WITHOUT_CODE: Final[dict[str, Callable[[Target], Iterator[Fault]]]] = {
    "device": _device,
    "template": _template,
    "lengths": _lengths,
    "kept": _kept,
    "checkpoint": _checkpoint,
}
"""Kinds of target that are not named by an import path."""


if __name__ == "__main__":
    main()
    # What modules clean up at their end is cleaned up; threads that the user's code left behind
    # must not hold up the end, so it is not that of the interpreter.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(EXIT_S)
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name for it
    os._exit(0)
