"""The proof of one folder as JSON, for whoever must not load a tokenizer itself.

`python -P -m milepost.actors.session.text.report FOLDER FAMILY OPTIONS` prints one object: the
family, hashes, CPU seconds, `faults` and `notes`; or `error`, when nothing could be tried.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from milepost.actors.session.families import UnknownFamily
from milepost.actors.session.text.proof import make_renderer, prove
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.sources import SourceDamaged, template_sources
from milepost.actors.session.text.template import RenderFailed


def report(folder: Path, family: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `milepost check-template` and the check of a topology's model say."""
    try:
        renderer = make_renderer(folder, family, options)
        began_s = time.process_time()
        findings = list(prove(renderer))
    except (FileNotFoundError, UnknownFamily, RenderFailed, SourceDamaged) as error:
        return {"folder": str(folder), "family": family, "error": str(error)}
    return {
        "folder": str(folder),
        "family": family,
        "family_verified": renderer.family.verified,
        "vocabulary": renderer.tokenizer.vocabulary_size,
        "rows_needed": _rows_needed(renderer, folder),
        "tokenizer_hash": renderer.tokenizer.content_hash,
        "template_hash": renderer.template.content_hash,
        "stop_tokens": [renderer.tokenizer.decode([t]) for t in renderer.family.stop_token_ids],
        "cpu_s": round(time.process_time() - began_s, 3),
        "faults": [str(each) for each in findings if each.is_fault],
        "notes": [str(each) for each in findings if not each.is_fault],
    }


def _rows_needed(renderer: Renderer, folder: Path) -> int:
    """Rows an embedding must have for every id that a conversation of this family can bring.

    A special token that neither the template nor an end of a reply names, such as one for padding,
    comes only of a text that spells it: that text is refused where it is met.
    """
    tokenizer, family = renderer.tokenizer, renderer.family
    written = "".join(template_sources(folder, family.bundled_template).values())
    names = {text: name for name, text in tokenizer.named_tokens.items()}
    used = [
        token_id
        for text, token_id in tokenizer.added_tokens.items()
        if token_id not in tokenizer.special_ids
        or text in written
        or (text in names and names[text] in written)
    ]
    return 1 + max([*used, *family.stop_token_ids, tokenizer.own_size - 1])


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(json.dumps(report(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))))  # noqa: T201
