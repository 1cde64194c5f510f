"""What a model's folder says about text, as files: the template's sources and their hash.

Read by the session, which renders with them, and by the trainer, whose door compares the hash.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xxhash import xxh3_128_hexdigest

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
BUNDLED: Final = Path(__file__).parents[1] / "families"
"""For families whose vendor publishes no template."""


class TextHashes(NamedTuple):
    """What decides which tokens a text is, as certificates name it; empty for what is not there."""

    tokenizer: str
    """xxh3-128 hex of the bytes of tokenizer.json."""
    template: str
    """See `hash_of_sources`."""


class SourceDamaged(ValueError):
    """A file that says how the model's text is written cannot be read; says which, and why."""


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json as it is; empty when there is none.

    Raises:
        SourceDamaged: it is no JSON object.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceDamaged(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SourceDamaged(f"{path} holds a {type(config).__name__} and no JSON object")
    return config


def template_sources(folder: Path, bundled: str = "") -> dict[str, str]:
    """Template texts by name: of chat_template.jinja, or of tokenizer_config.json.

    Args:
        folder: of the model.
        bundled: template that comes with Milepost, used where the folder has none; or empty.

    Raises:
        SourceDamaged: a file is no text, or holds no templates where they should be.
    """
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            return {"default": path.read_text(encoding="utf-8")}
        except UnicodeDecodeError as error:
            raise SourceDamaged(f"{path} is no text: {error}") from error
    written = read_config(folder).get("chat_template")
    if isinstance(written, str):
        return {"default": written}
    if isinstance(written, list):
        try:
            return {str(entry["name"]): str(entry["template"]) for entry in written}
        except (KeyError, TypeError) as error:
            what = f"`chat_template` in {folder / CONFIG_FILE} is no list of named templates"
            raise SourceDamaged(what) from error
    if bundled:
        return {"default": (BUNDLED / bundled).read_text(encoding="utf-8")}
    return {}


def text_hashes(folder: Path, bundled: str = "") -> TextHashes:
    """Of a model's folder.

    Raises:
        SourceDamaged: see `template_sources`.
    """
    tokenizer, sources = folder / TOKENIZER_FILE, template_sources(folder, bundled)
    return TextHashes(
        tokenizer=xxh3_128_hexdigest(tokenizer.read_bytes()) if tokenizer.is_file() else "",
        template=hash_of_sources(sources) if sources else "",
    )


def hash_of_sources(sources: Mapping[str, str]) -> str:
    """xxh3-128 hex of the template's text; of all names and texts, when there are several."""
    text = "\x00".join(f"{name}\x00{source}" for name, source in sorted(sources.items()))
    single = sources["default"] if sources.keys() == {"default"} else text
    return xxh3_128_hexdigest(single.encode())
