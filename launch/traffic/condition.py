"""Conditions over the fields of a message: a small language of comparisons, read and never run.

    type == "TrajectoryFinished" and trajectory.reward > 0.5
    group_id in ["g1", "g2"] or len(turns) >= 3

Names are fields of the message; `type`, `source`, `to`, `kind`, `id`, `cause` and `bytes` are of
its envelope, `staleness` is the age of its tokens, `message.type` is a field for certain. A
comparison with a field that the message does not have, or that cannot be made (a number with a
text), does not hold; `Condition.why_not` has which. Of a long array a tap copies the first values
alone: a comparison that rests on the others holds as little as its negation.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.suggest import nearest
from milepost.launch.traffic.seen import NotCopied

CHARACTERS_MAX: Final = 1000
NODES_MAX: Final = 200
ENVELOPE: Final = ("type", "source", "to", "kind", "id", "cause", "bytes", "staleness")
MESSAGE: Final = "message"
WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


class Why(NamedTuple):
    """Why something could not be compared."""

    text: str
    detail: str = ""
    """Of this one message: another for which the same is to be said may have another."""


class _Absent(LookupError):
    """The message has no such field."""


class _NotKnown(Exception):
    """What was copied of the message does not tell whether it holds."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


class Condition:
    """One condition, checked when it is made.

    Args:
        text: what it says.
        fields: names of the fields that any message has.

    Raises:
        ConfigError: it says something else than comparisons, or names no field.
    """

    def __init__(self, text: str, fields: Collection[str]) -> None:
        self._text = text
        if len(text) > CHARACTERS_MAX:
            self._refuse(f"a condition of {len(text)} characters", f"{CHARACTERS_MAX} are allowed")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self._refuse(
                f"`{text}` cannot be read: {error}", "write comparisons, `and`, `or`, `not`"
            )
        self._root = tree.body
        self._known = sorted({*fields, *ENVELOPE, MESSAGE, *WORDS})
        if sum(1 for _ in ast.walk(self._root)) > NODES_MAX:
            self._refuse("a condition of too many parts", f"{NODES_MAX} are allowed")
        self._check(self._root)
        self.why_not: list[Why] = []
        """What could not be compared in the last message, with the reason."""

    def holds(self, envelope: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
        """Whether it holds for this message."""
        reading = _Reading(envelope, message)
        self.why_not = reading.why_not
        try:
            return reading.truth(self._root)
        except _NotKnown as unknown:
            self.why_not.append(unknown.why)
            return False

    @property
    def names(self) -> set[str]:
        """What it speaks of."""
        return {node.id for node in ast.walk(self._root) if isinstance(node, ast.Name)}

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                pass
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
                parts = [part]
            case ast.Compare(left=left, ops=signs, comparators=rest):
                unknown = [sign for sign in signs if type(sign) not in COMPARE]
                if unknown:
                    self._refuse(f"`{ast.unparse(node)}` is no comparison", "use == in place of is")
                parts = [left, *rest]
            case ast.Name(id=name):
                self._check_name(name)
                return
            case ast.Constant(value=str() | bool() | int() | float() | None):
                return
            case ast.Attribute(value=part):
                parts = [part]
            case ast.Subscript(value=value, slice=part) if not isinstance(part, ast.Slice):
                parts = [value, part]
            case ast.Call(func=ast.Name(id="len"), args=[part], keywords=[]):
                parts = [part]
            case _:
                remedy = "write comparisons of fields, `and`, `or`, `not`, `in`, `len(field)`"
                self._refuse(f"`{ast.unparse(node)}` is no part of a condition", remedy)
        for part in parts:
            self._check(part)

    def _check_name(self, name: str) -> None:
        if name not in self._known:
            likely = nearest(name, self._known)
            hint = f"did you mean `{likely}`" if likely else "docs/protocol.md lists the fields"
            self._refuse(f"no message has a field `{name}`", hint)

    def _refuse(self, what: str, remedy: str) -> None:
        raise ConfigError([Problem(what, "--where", remedy)])


class _Reading:
    """The condition's parts over one message."""

    def __init__(self, envelope: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        self._envelope = envelope
        self._message = message
        self.why_not: list[Why] = []

    def truth(self, node: ast.expr) -> bool:
        """Whether it holds.

        Raises:
            _NotKnown: nobody can tell; nor then whether its negation does.
        """
        match node:
            case ast.BoolOp(op=sign, values=parts):
                return self._joined(parts, decisive=isinstance(sign, ast.Or))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not self.truth(part)
        try:
            return bool(self.value(node))
        except _Absent as absent:
            self.why_not.append(Why(f"has no field `{absent}`"))
        except TypeError:
            text = f"cannot be compared by `{ast.unparse(node)}`: not of one type"
            self.why_not.append(Why(text))
        except NotCopied as error:
            text = f"cannot be compared by `{ast.unparse(node)}`"
            raise _NotKnown(Why(text, f": {error}")) from error
        return False

    def _joined(self, parts: Sequence[ast.expr], *, decisive: bool) -> bool:
        """`or` or `and`: one part that is as `decisive` settles it, whatever is not known."""
        unknown: _NotKnown | None = None
        for part in parts:
            try:
                if self.truth(part) is decisive:
                    return decisive
            except _NotKnown as error:
                unknown = unknown or error
        if unknown is not None:
            raise unknown
        return not decisive

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Compare(left=left, ops=signs, comparators=rest):
                return self._compares(self.value(left), signs, rest)
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.truth(node)
            case ast.UnaryOp(operand=part):
                return -self.value(part)
            case ast.Constant(value=value):
                return value
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=part, attr=name):
                return _member(self.value(part), name)
            case ast.Subscript(value=part, slice=index):
                return _member(self.value(part), self.value(index))
            case ast.Call(args=[part]):
                return len(self.value(part))
            case _:
                raise AssertionError(f"{ast.dump(node)} was let in by the check")

    def _compares(self, left: Any, signs: Sequence[ast.cmpop], rest: Sequence[ast.expr]) -> bool:
        for sign, part in zip(signs, rest, strict=True):
            right = self.value(part)
            if not COMPARE[type(sign)](left, right):
                return False
            left = right
        return True

    def _named(self, name: str) -> Any:
        if name in WORDS:
            return WORDS[name]
        if name == MESSAGE:
            return self._message
        return _member(self._envelope if name in ENVELOPE else self._message, name)


def _member(whole: Any, key: Any) -> Any:
    try:
        return whole[key]
    except (KeyError, IndexError) as error:
        raise _Absent(key) from error
