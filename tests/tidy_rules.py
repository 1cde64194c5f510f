"""House rules that no linter knows, as functions over one file.

Each yields (line, text); the text says what is banned and what to use instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

FILE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70
ROOMS: Final = ("actors", "configs", "launch", "messages", "supervisor")

Finding: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class Source:
    """One Python file; `path` is relative to the root."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_test(self) -> bool:
        return self.path.parts[0] == "tests"

    @property
    def is_bench(self) -> bool:
        return self.path.parts[:2] == ("tests", "bench")

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of these dotted names, as they are written."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                yield node


def long_files(source: Source) -> Iterator[Finding]:
    count = source.text.count("\n")
    if count > FILE_LINES_MAX:
        yield 1, f"a file of {count} lines is banned, split it by what it owns ({FILE_LINES_MAX})"


def long_functions(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                text = f"a function of {count} lines ({node.name}) is banned, move its leaves out"
                yield node.lineno, f"{text} ({FUNCTION_LINES_MAX})"


def pickling(source: Source) -> Iterator[Finding]:
    banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            inside = node.module if isinstance(node, ast.ImportFrom) else None
            for name in [inside] if inside else [alias.name for alias in node.names]:
                if name.partition(".")[0] in banned:
                    yield node.lineno, f"{name} is banned, use msgpack, safetensors or torch DCP"


def cancelled_receives(source: Source) -> Iterator[Finding]:
    for call in source.calls("asyncio.wait_for", "wait_for"):
        yield call.lineno, "asyncio.wait_for is banned, use asyncio.wait or a deadline of the bus"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncWith) and "timeout" in ast.unparse(node.items[0]):
            inside = "".join(ast.unparse(each) for each in node.body)
            if re.search(r"\.recv\w*\(", inside):
                text = "a receive inside asyncio.timeout is banned (it loses messages), "
                yield node.lineno, text + "use one reader task that is never cancelled"


def unbounded_queues(source: Source) -> Iterator[Finding]:
    names = ("asyncio.Queue", "queue.Queue", "Queue", "asyncio.PriorityQueue", "asyncio.LifoQueue")
    for call in source.calls(*names):
        if not call.args and not call.keywords:
            yield call.lineno, f"{ast.unparse(call)} without a limit is banned, give it maxsize"
    for call in source.calls("queue.SimpleQueue", "SimpleQueue"):
        yield call.lineno, "SimpleQueue is banned, use queue.Queue(maxsize=...)"


def blocking_sleeps(source: Source) -> Iterator[Finding]:
    for function in ast.walk(source.tree):
        if isinstance(function, ast.AsyncFunctionDef):
            for node in _own_nodes(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
                    yield node.lineno, "time.sleep in async code is banned, use a Wake effect"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Everything in a function, without the functions inside it: those may run in a thread."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def sleeping_tests(source: Source) -> Iterator[Finding]:
    if not source.is_test or source.is_bench:
        return
    for call in source.calls("time.sleep", "asyncio.sleep", "sleep"):
        if not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0):
            text = f"{ast.unparse(call)} in a test is banned, wait for the event itself"
            yield call.lineno, text
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unittest.mock"):
            yield node.lineno, "unittest.mock is banned, use a fake that can fail"


def guessed_fields(source: Source) -> Iterator[Finding]:
    if source.is_test:
        return
    for call in source.calls("getattr"):
        owner = ast.unparse(call.args[0])
        if re.search(r"config|topology|\bactors\b|arguments|\bargs\b", owner):
            yield call.lineno, f"getattr on {owner} is banned, name the field"


def open_ended_sockets(source: Source) -> Iterator[Finding]:
    text = source.text.lower()
    if "linger" in text and "hwm" in text:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and re.search(r"\.socket\(.*zmq\.", ast.unparse(node)):
            ban = "a socket without linger and high-water mark is banned, set both"
            yield node.lineno, ban


def broad_excepts(source: Source) -> Iterator[Finding]:
    if source.is_test:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            kind = ast.unparse(node.type) if node.type else ""
            if kind in {"", "Exception", "BaseException"}:
                text = f"except {kind or '(everything)'} is banned, name what can happen here"
                yield node.lineno, text


LEFTOVERS: Final = (
    (r"\b(FIX" + r"ME|TO" + r"DO|XX" + r"X|HA" + r"CK)\b", "finish it or file it"),
    (r"^(<{7}|>{7}|={7})( |$)", "resolve the conflict"),
    (r"/(work|root|home/\w+)/", "use a path relative to the run or the repository"),
    (r"breakpoint\(\)|pdb\.set_trace", "remove it"),
    (r"\t", "indent with spaces"),
)


def leftovers(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        for pattern, remedy in LEFTOVERS:
            if found := re.search(pattern, line):
                yield number, f"{found[0]!r} is banned, {remedy}"


RULES: Final[tuple[Callable[[Source], Iterator[Finding]], ...]] = (
    long_files,
    long_functions,
    pickling,
    cancelled_receives,
    unbounded_queues,
    blocking_sleeps,
    sleeping_tests,
    guessed_fields,
    open_ended_sockets,
    broad_excepts,
    leftovers,
)
