"""Prove that a family fits a model's tokenizer and chat template.

Renders many conversations (tools, parallel calls, reasoning, empty and unicode text) and compares
what a session would send with what the template writes; needs no weights and no GPU. Exit code 0
when nothing is wrong, 2 when something is. Notes say where the template rewrites what was said
before; a session keeps what was sampled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.read import home_of
from milepost.launch.exits import Exit

DEADLINE_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="folder of the model")
    parser.add_argument("--family", required=True, metavar="NAME", help="as in `model.family`")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="variable of the template, as in `actors.session.template_options`",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Try the proof in a process of its own: this one loads no tokenizer."""
    options = dict(map(_option, arguments.option))
    found = _ask(Path(home_of(arguments.tokenizer)), arguments.family, options)
    if arguments.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(found)
    return Exit.REFUSED if found.get("error") or found["faults"] else Exit.DONE


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    if not name or not equals:
        problem = Problem(f'"{text}" is no option', "--option", "write NAME=JSON")
        raise ConfigError([problem])
    return name, read


def _ask(folder: Path, family: str, options: dict[str, Any]) -> dict[str, Any]:
    module = "milepost.actors.session.text.report"
    command = [sys.executable, "-P", "-m", module, str(folder), family, json.dumps(options)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        told = f"rendering took longer than {DEADLINE_S:g} s"
        return {"folder": str(folder), "family": family, "error": told}
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        told = f"the proof ended with exit code {done.returncode}: {last}"
        return {"folder": str(folder), "family": family, "error": told}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _print(found: dict[str, Any]) -> None:
    if error := found.get("error"):
        print(f"error: {error}")
        return
    for kind in ("notes", "faults"):
        for text in found[kind]:
            print(f"{kind.removesuffix('s')}: {text}")
    known = found["family_verified"]
    verified = f"verified on the vendor's {known}" if known else "unverified"
    print(
        f"{len(found['faults'])} faults, {len(found['notes'])} notes, {found['cpu_s']} s of CPU; "
        f"family {found['family']} ({verified}), replies end with {', '.join(found['stop_tokens'])}"
    )
