"""Fields of a request's body: each is taken by name, and what nobody takes is refused.

A field that would change the distribution of the run is taken only when it says what the run does
anyway. One that says nothing about tokens passes. Null is as good as absent, everywhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Raw

from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.validation import SERVER_FIELDS, refuse_server_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from milepost.messages.shared import SamplingParams

T = TypeVar("T")

NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading a client's JSON may raise."""
_KEY: Final = re.compile(rb'[\s,{]*("(?:[^"\\]|\\.)*")\s*:\s*')
_DECODER = msgspec.json.Decoder(dict[str, Raw])
_NOTHING = (b"null", b"false")
_SHORT_BYTES: Final = 2048
_quoted = lru_cache(maxsize=256)(msgspec.json.encode)
_OF_TOOLS: Final = "tools."
"""Before the name of a field of tools, where the topology names fields."""
_MET: Final = {"allowed_callers": ["direct"]}
"""What a tool may ask for, since it is so here anyway: the policy calls it, and nothing else."""
_PASSING_OF_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


class Fields:
    """The top level of one body, read once and not deeper than asked.

    Args:
        body: JSON.
        dropped: fields that the topology lets clients send in vain; `tools.NAME`: of each tool.

    Attributes:
        dropped_of_tools: of those, the names of fields of tools.

    Raises:
        TurnRefused: kind bad_request; no JSON object, a field stands in it twice, or it carries
            fields of the server's.
    """

    def __init__(self, body: bytes, dropped: Collection[str] = ()) -> None:
        try:
            self._raw = _DECODER.decode(body)
        except NO_JSON as error:
            raise TurnRefused("bad_request", f"the body is no JSON object: {error}") from error
        self._places = places_of(body, self._raw)
        for name in SERVER_FIELDS.intersection(self._raw):
            if bytes(self._raw[name]) in _NOTHING:
                del self._raw[name]
        refuse_server_fields(self._raw, "the request")
        for name in dropped:
            self._raw.pop(name, None)
        self.dropped_of_tools = [
            name.removeprefix(_OF_TOOLS) for name in dropped if name.startswith(_OF_TOOLS)
        ]

    def take(self, name: str, kind: type[T]) -> T | None:
        """The field as this type; None when it is absent or null.

        Raises:
            TurnRefused: it is of another type.
        """
        raw = self._raw.pop(name, None)
        if raw is None or bytes(raw) == b"null":
            return None
        try:
            return msgspec.json.decode(raw, type=kind)
        except NO_JSON as error:
            raise TurnRefused("bad_request", f"{name}: {error}") from error

    def raw(self, name: str) -> bytes:
        """The field as it was sent; empty when it is absent or null."""
        raw = bytes(self._raw.pop(name, b"null"))
        return b"" if raw == b"null" else raw

    def place(self, name: str) -> int:
        """Where the value of this field begins in the body; -1 when it is absent."""
        return self._places.get(name, -1)

    def neutral(self, name: str, values: Sequence[Any]) -> None:
        """Take a field that must not ask for anything: null, or one of these values.

        Raises:
            TurnRefused: it is another.
        """
        value: Any = self.take(name, object)
        if value is not None and not any(value == one for one in values):
            allowed = ", ".join(msgspec.json.encode(one).decode() for one in values) or "null"
            told = msgspec.json.encode(value).decode()[:80]
            raise TurnRefused(
                "bad_request", f"{name} = {told} is not supported, leave it out or send {allowed}"
            )

    def of_the_run(self, name: str, *values: Any) -> None:
        """Take a field whose value is the run's to set.

        Raises:
            TurnRefused: the client wants another value.
        """
        wanted: Any = self.take(name, object)
        if wanted is not None and not any(wanted == one for one in values):
            told = msgspec.json.encode(wanted).decode()[:80]
            raise TurnRefused(
                "bad_request",
                f"{name} = {told}, but the run samples with {values[0]!r}: leave it out, or let "
                f"the topology drop it (actors.session.http.dropped_fields)",
            )

    def sampling(self, sampling: SamplingParams) -> None:
        """Take temperature, top_p, top_k and min_p, which must be the session's own.

        Raises:
            TurnRefused: one of them is another.
        """
        if self._raw.keys().isdisjoint(_PASSING_OF_SAMPLING):
            return
        self.of_the_run("temperature", sampling.temperature)
        self.of_the_run("top_p", sampling.top_p)
        self.of_the_run("min_p", sampling.min_p)
        # Off is 0 with us, and -1 in other engines.
        self.of_the_run("top_k", sampling.top_k, *(() if sampling.top_k else (-1,)))

    def template_options(self, name: str, options: Mapping[str, Any]) -> None:
        """Take variables of the chat template, which must be the run's own.

        Raises:
            TurnRefused: no object, or one of them is another.
        """
        wanted: dict[str, Any] = self.take(name, dict[str, Any]) or {}
        for key, value in wanted.items():
            if key not in options or options[key] != value:
                raise TurnRefused(
                    "bad_request",
                    f"{name}.{key} = {value!r}, the run's template_options are {dict(options)!r}: "
                    "a conversation has one template, leave it out",
                )

    def passing(self, *names: str) -> None:
        """Take fields that say nothing about tokens: names, labels, where to keep a copy."""
        for name in names:
            self._raw.pop(name, None)

    @property
    def are_taken(self) -> bool:
        """Whether nothing is left: most requests carry messages, tools and a model."""
        return not self._raw

    def done(self) -> None:
        """Every field is taken.

        Raises:
            TurnRefused: names those that are not.
        """
        left = sorted(name for name, raw in self._raw.items() if bytes(raw) != b"null")
        if left:
            raise TurnRefused(
                "bad_request",
                f"{', '.join(left)}: not known here, and nothing is ignored; leave it out, or let "
                "the topology drop it (actors.session.http.dropped_fields)",
            )


def check_once(body: bytes, names: Collection[str], where: str) -> None:
    """Refuse a field that stands twice in this object.

    Args:
        body: JSON of the object.
        names: of its fields.
        where: what it is.

    Raises:
        TurnRefused: one does.
    """
    # Counting is quick in what is short. Quotes inside of a text are spelled otherwise, so a name
    # in quotes is a field's, here or further in, or it is the whole text.
    if len(body) <= _SHORT_BYTES and b"\\u" not in body and b"\\/" not in body:
        for name in names:
            if body.count(_quoted(name)) != 1:
                break
        else:
            return
    places_of(body, _DECODER.decode(body), f"{where}.")


def places_of(body: bytes, fields: Mapping[str, Raw], where: str = "") -> dict[str, int]:
    """Where each value of an object begins.

    The decoder keeps the last of those that have one name. Here each is looked for at its own
    place, which costs one comparison of bytes.

    Raises:
        TurnRefused: a field stands in this object more than once.
    """
    places, end = dict[str, int](), 0
    while (found := _KEY.match(body, end)) is not None:
        name = msgspec.json.decode(found[1], type=str)
        start, value = found.end(), memoryview(fields[name])
        end = start + len(value)
        if name in places or not body.startswith(value, start):
            raise TurnRefused("bad_request", f"{where}{name} stands twice: which one counts?")
        places[name] = start
    return places


def refuse_more(tool: Mapping[str, Any], known: Collection[str], index: int) -> None:
    """Refuse what a tool has beside its known fields, unless that is so anyway, null or empty.

    Raises:
        TurnRefused: kind bad_request; names the field.
    """
    for name, value in tool.items():
        if value and name not in known and value != _MET.get(name):
            told = msgspec.json.encode(value).decode()[:80]
            raise TurnRefused(
                "bad_request",
                f"tools[{index}].{name} = {told} cannot be met: leave it out, or let the topology "
                f'drop it (actors.session.http.dropped_fields = ["{_OF_TOOLS}{name}"])',
            )


def check_effort(effort: str | None, options: Mapping[str, Any], name: str) -> None:
    """Whether the run's template thinks as much as a client wants.

    A template with a variable `reasoning_effort` decides by that. One that can only think or not
    (`enable_thinking`) serves `none` and nothing in between.

    Raises:
        TurnRefused: it does not.
    """
    if effort is None:
        return
    if "reasoning_effort" in options:
        is_met = options["reasoning_effort"] == effort
    else:
        is_met = effort == "none" and options.get("enable_thinking") is False
    if not is_met:
        raise TurnRefused(
            "bad_request",
            f"{name} = {effort!r} cannot be met: the run's template_options are {dict(options)!r}, "
            "the same for every turn; leave it out",
        )
