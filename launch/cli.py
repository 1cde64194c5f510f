"""`milepost COMMAND ...`: finds the command's file, and imports nothing else.

A command is one file in `launch/commands`: its docstring is its help, `add_arguments(parser)` says
what it takes, and `run(arguments)` returns one of the codes in `milepost.launch.exits`.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from milepost.configs.problem import ConfigError
from milepost.launch.exits import Exit
from milepost.launch.output import lasting_output

COMMANDS: Final = Path(__file__).parent / "commands"
LASTING: Final = frozenset({"agent-check", "check", "check-template", "quickstart", "run"})
"""Commands that go on when nobody reads what they print: they end with what they found."""


class CommandModule(Protocol):
    """What a file in `launch/commands` holds."""

    __doc__: str | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code of the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    _write_what_the_terminal_can()
    if not words or words[0] in {"--help", "-h", "help"}:
        print(usage())
        return Exit.DONE if words else Exit.REFUSED
    if words[0] == "--version":
        from importlib import metadata  # it is half of the time that --help takes

        print(f"milepost {metadata.version('milepost')}")
        return Exit.DONE
    name, rest = words[0], words[1:]
    if name not in command_names():
        return _unknown(name)
    return run_command(name, rest)


def _write_what_the_terminal_can() -> None:
    """Under `LC_ALL=C` a bar of the curve must become a question mark, not the end of a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run_command(name: str, words: Sequence[str]) -> int:
    """Parse `words` for the command called `name` and run it.

    A wrong word ends the process with code 2, as argparse does; a fault in a topology is printed
    and returned as code 2; a reader that went away (`| head`) is no fault, and ends what only
    prints.
    """
    module = cast("CommandModule", import_module(f"milepost.launch.commands.{module_name(name)}"))
    parser = argparse.ArgumentParser(
        prog=f"milepost {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    arguments = parser.parse_args(words)
    with lasting_output() if name in LASTING else nullcontext():
        return _run(module, arguments)


def _run(module: CommandModule, arguments: argparse.Namespace) -> int:
    try:
        code = module.run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return Exit.REFUSED
    except KeyboardInterrupt:
        # A run that goes on handles it by itself; here nothing goes on yet, or nothing any more.
        print("stopped", file=sys.stderr)
        return Exit.FAILED
    except BrokenPipeError:
        # Python would complain once more when it closes stdout at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return code


def command_names() -> tuple[str, ...]:
    """Every command there is, by the files in `launch/commands`."""
    stems = (path.stem for path in COMMANDS.glob("*.py") if not path.stem.startswith("_"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems))


def module_name(name: str) -> str:
    """The file of a command: `agent-check` lives in agent_check.py."""
    return name.replace("-", "_")


def usage() -> str:
    """The page of `milepost --help`: one line for each command, read without importing it."""
    lines = ["usage: milepost COMMAND ...", ""]
    lines += [f"  {name:<16}{summary(name)}" for name in command_names()]
    lines += [
        "",
        "milepost COMMAND --help says more. Exit codes: 0 done, 1 failed, 2 refused before",
        "anything started, 3 the supervisor of the run cannot be reached.",
    ]
    return "\n".join(lines)


def summary(name: str) -> str:
    """First line of a command's docstring, without its full stop."""
    import ast  # --help alone has a use for it

    source = (COMMANDS / f"{module_name(name)}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return text.partition("\n")[0].rstrip(".")


def _unknown(name: str) -> int:
    from milepost.configs.suggest import nearest  # for who has mistyped

    likely = nearest(name, command_names())
    hint = f"did you mean `{likely}`" if likely else "milepost --help lists them"
    print(f"error: unknown command `{name}`, {hint}", file=sys.stderr)
    return Exit.REFUSED
