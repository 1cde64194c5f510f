"""Tables of the docs that are written by the code they describe; `make docs` writes them again."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from wire import protocol_tables

from milepost.actors.session.families.declared import ALL_ROLES, Declaration
from milepost.actors.session.families.table import DECLARATIONS
from milepost.configs.actors import RestartConfig
from milepost.configs.metrics import ELSEWHERE, METRICS
from milepost.configs.topology import ActorsConfig, Topology
from milepost.launch.cli import command_names, summary
from milepost.supervisor.checks import CHECKS, Stage
from milepost.supervisor.exporter.families import COUNTERS, GAUGES

DOCS: Final = Path(__file__).parent.parent / "docs"
STAGES: Final = {
    Stage.READING: "the topology alone",
    Stage.FILES: "files and this machine",
    Stage.CODE: "in a child process",
}


def checks_table() -> Iterator[str]:
    """Every check of `milepost check`, in order."""
    yield "| stage | holds when | else |"
    yield "| --- | --- | --- |"
    for check in CHECKS:
        yield f"| {STAGES[check.stage]} | {check.sentence} | {check.prevents} |"


def commands_table() -> Iterator[str]:
    """Every command of `milepost --help`, with the first line of its help."""
    yield "| command | what it does |"
    yield "| --- | --- |"
    for name in command_names():
        yield f"| `milepost {name}` | {summary(name)} |"


def metrics_table() -> Iterator[str]:
    """Every metric with its unit and its meaning."""
    yield "| metric | unit | meaning |"
    yield "| --- | --- | --- |"
    for metric in METRICS:
        yield f"| `{metric.name}` | {metric.unit} | {_cell(metric.meaning)} |"


def elsewhere_table() -> Iterator[str]:
    """Every name of other systems that is not ours."""
    yield "| name elsewhere | here |"
    yield "| --- | --- |"
    for name, reason in ELSEWHERE:
        yield f"| `{name}` | {_cell(reason)} |"


def actor_samples_table() -> Iterator[str]:
    """What Prometheus is told of each actor."""
    yield "| sample | meaning |"
    yield "| --- | --- |"
    for name, _, _, meaning in GAUGES:
        yield f"| `milepost_actor_{name}` | {meaning} |"
    for name, _, meaning in COUNTERS:
        yield f"| `milepost_actor_{name}_total` | {meaning} |"


def topology_tables() -> Iterator[str]:
    """Every table of a topology file with all its keys."""
    yield from _tables(Topology, "")
    yield from _tables(RestartConfig, "actors.KIND.restart")
    kinds = msgspec.structs.fields(ActorsConfig)
    permanent = [f"`{field.name}`" for field in kinds if _restarts(field.type)]
    yield f'`policy` is `"permanent"` by default for {" and ".join(permanent)}.'


def _restarts(annotation: Any) -> bool:
    struct, _ = _struct_of(annotation)
    assert struct is not None
    restart = {field.name: field.default for field in msgspec.structs.fields(struct)}["restart"]
    assert isinstance(restart, RestartConfig)
    return restart.policy == "permanent"


def _tables(kind: type[Struct], path: str) -> Iterator[str]:
    inner: list[tuple[str, type[Struct]]] = []
    rows: list[str] = []
    notes = _field_docs(kind)
    for field in msgspec.structs.fields(kind):
        struct, named = _struct_of(field.type)
        name = f"{path}.{field.name}".lstrip(".")
        if struct is not None:
            inner.append((f"{name}.NAME" if named else name, struct))
            continue
        default = "required" if field.required else f"`{_default(field)}`"
        note = notes.get(field.name, "").replace("|", "\\|")
        rows.append(f"| `{field.name}` | {_words(field.type)} | {default} | {note} |")
    if path:
        yield f"### `[{path}]`"
        yield ""
    if rows:
        yield "| key | value | default | |"
        yield "| --- | --- | --- | --- |"
        yield from rows
        yield ""
    for name, struct in inner:
        # The same table in every actor's; it is shown once, at the end.
        if struct is not RestartConfig:
            yield from _tables(struct, name)


def _struct_of(annotation: Any) -> tuple[type[Struct] | None, bool]:
    info = msgspec.inspect.type_info(annotation)
    if isinstance(info, msgspec.inspect.DictType):
        value = info.value_type
        return (value.cls, True) if isinstance(value, msgspec.inspect.StructType) else (None, False)
    members = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    for member in members:
        if isinstance(member, msgspec.inspect.StructType):
            return member.cls, False
    return None, False


def _words(annotation: Any) -> str:
    info = msgspec.inspect.type_info(annotation)
    match info:
        case msgspec.inspect.LiteralType(values=values):
            # msgspec sorts them; the source's order is the one that makes sense.
            return " or ".join(f'`"{value}"`' for value in annotation.__args__ or values)
        case msgspec.inspect.EnumType(cls=enum):
            return " or ".join(f'`"{member.value}"`' for member in enum)
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return _number(info)
        case msgspec.inspect.UnionType(types=types):
            numbers = (each for each in types if not isinstance(each, msgspec.inspect.NoneType))
            return " or ".join(_number(each) for each in numbers)
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.DictType():
            return "a table of your own"
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return "a list of strings"
        case _:
            return "a string"


def _number(info: Any) -> str:
    kind = "integer" if isinstance(info, msgspec.inspect.IntType) else "number"
    bounds = [(">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le)]
    # An integer whole, as one writes it: `g` rounds it to six digits.
    said = ", ".join(
        f"{sign} {bound:g}".replace("e+", "e") if isinstance(bound, float) else f"{sign} {bound}"
        for sign, bound in bounds
        if bound is not None
    )
    return f"{kind} {said}".strip()


def _default(field: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None:
        return "not set"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return "[]" if not value else str(list(value))
    return str(value)


def _field_docs(kind: type[Struct]) -> dict[str, str]:
    """The strings below the fields, as the source has them."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for before, node in zip(body.body, body.body[1:], strict=False):
        match before, node:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                found[name] = " ".join(str(text).split())
            case _:
                pass
    return found


def families_table() -> Iterator[str]:
    """Every declared family, and the default."""
    yield "| family | models | stop tokens | seam | replies | verified on |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for each in DECLARATIONS.values():
        stops = ", ".join(f"`{_cell(stop)}`" for stop in each.stops)
        verified = f"the vendor's {each.verified}" if each.verified else "**unverified**"
        if each.verified == "tokenizer":
            verified += "; template **unverified**"
        replies = f"{each.reads}; no {missing}" if (missing := _missing(each)) else each.reads
        yield f"| {each.name} | {each.models} | {stops} | {_seam(each)} | {replies} | {verified} |"
    yield (
        "| default | any other, best effort | `eos_token` | none "
        "| `<think>`, JSON in `<tool_call>` | **unverified** |"
    )


def _seam(each: Declaration) -> str:
    parts = [f"{each.after_end!r} after `{_cell(each.stops[0])}`"] if each.after_end else []
    for old, new in each.dropped.items():
        parts.append(
            f"`{_cell(old)}` becomes `{_cell(new)}`" if new else f"`{_cell(old)}` is dropped"
        )
    return ", ".join(parts) or "none"


def _missing(each: Declaration) -> str:
    return ", ".join(f"{role} messages later on" for role in sorted(ALL_ROLES - each.roles))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


TABLES: Final = {
    ("actors/session.md", "families"): families_table,
    ("metrics.md", "metrics"): metrics_table,
    ("metrics.md", "elsewhere"): elsewhere_table,
    ("metrics.md", "actors"): actor_samples_table,
    ("operating.md", "checks"): checks_table,
    ("operating.md", "commands"): commands_table,
    ("topology.md", "tables"): topology_tables,
    **protocol_tables.TABLES,
}
"""(page, name of the place in it) -> what writes it."""


def replaced(text: str, name: str, lines: Iterator[str]) -> str:
    """The page with the part between its two markers written anew."""
    begin, end = f"<!-- begin {name}: written by `make docs` -->", f"<!-- end {name} -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    assert re.search(pattern, text, re.DOTALL), f"the page has no place for {name}"
    new = "\n".join([begin, "", *lines]).rstrip("\n") + f"\n\n{end}"
    return re.sub(pattern, lambda _: new, text, flags=re.DOTALL)


def main() -> None:
    """Write every table."""
    for (page, name), table in TABLES.items():
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        path.write_text(replaced(text, name, table()), encoding="utf-8")


if __name__ == "__main__":
    main()
