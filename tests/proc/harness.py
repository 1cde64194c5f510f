"""A harness that knows a base URL and a key, and nothing of us.

`python harness.py` asks twice and prints its result. With the word `wrong` it changes what was said
before, takes a refusal for the end of the world, and asks from a process that stays behind.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

IS_WRONG = "wrong" in sys.argv


def ask(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The reply; None when it is refused."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages}).encode(),
        headers={
            "content-type": "application/json",
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        },
    )
    try:
        with urllib.request.urlopen(request) as answer:
            message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
            return message
    except urllib.error.HTTPError as error:
        told = f"{error.code}: {error.read().decode()}"
        if IS_WRONG:
            raise SystemExit(told) from error
        sys.stderr.write(told)
        return None


def main() -> None:
    """Two turns."""
    messages = json.load(sys.stdin)["messages"]
    if IS_WRONG and (child := os.fork()):
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if IS_WRONG:
        os.setsid()
    first = ask(messages)
    if first is None:
        raise SystemExit("no reply at all")
    if IS_WRONG:
        messages[0]["content"] += " Really?"
    ask([*messages, first, {"role": "user", "content": "Are you sure?"}])
    print(json.dumps({"reward": 1.0}))  # noqa: T201


if __name__ == "__main__":
    main()
