"""The user's code is loaded in a process that may print, hang or die, and is named for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from milepost.configs.recipes.tiny.tokenizer import train_tokenizer, write_tokenizer
from milepost.supervisor.checks.code import probe
from milepost.supervisor.probe import Target

pytestmark = pytest.mark.timeout(60)

MODULES = {
    "good": "def prompts(split, seed, options):\n"
    "    from milepost.messages.shared import Prompt\n"
    "    print('a word on standard output')\n"
    "    yield Prompt(prompt_id=split, messages=[{'role': 'user', 'content': 'x'}])\n"
    "def keep(rewards):\n    return ''\n"
    "def create(folder, seed, options):\n    pass\n",
    "odd": "def none(split, seed, options):\n    return []\n"
    "def words(split, seed, options):\n    return ['x']\n"
    "def breaks(split, seed, options):\n    raise KeyError('no such file')\n"
    "def two(a, b):\n    pass\n"
    "def number(rewards):\n    return 3\n"
    "thing = 3\n",
    "ends": "import os\nos._exit(3)\n",
    "leaves": "import sys\nsys.exit('I would rather not')\n",
    "dies": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "hangs": "import signal\nsignal.pause()\n",
    "waits": "import os, pathlib, signal\n"
    "pathlib.Path(__file__).with_name('fifo').write_text(str(os.getpid()))\n"
    "signal.pause()\n",
    "raises": "raise ValueError('not today')\n",
    "needs": "import no_such_package\n",
    "broken": "x = 1\ndef (\n",
    "late": "def prompts(split, seed, options):\n"
    "    from milepost.messages.shared import Prompt\n"
    "    yield Prompt(prompt_id=split, messages=[{'role': 'user', 'content': 'x'}])\n"
    "    raise KeyError('the second one')\n",
    "agents": "from milepost.actors.agent import Agent\n"
    "class Good(Agent):\n"
    "    def __init__(self, level=1):\n        pass\n"
    "    async def run(self, episode):\n        pass\n"
    "class Heir(Good):\n    pass\n"
    "class Lazy(Agent):\n    pass\n"
    "class Sync(Agent):\n    def run(self, episode):\n        pass\n"
    "class Narrow(Agent):\n    async def run(self):\n        pass\n"
    "class Stranger:\n    async def run(self, episode):\n        pass\n"
    "def function(self, episode):\n    pass\n"
    "def reward(given):\n    return 1.0\n"
    "async def slow_reward(given):\n    return 1.0\n"
    "def pair(prompt, reply):\n    return 1.0\n"
    "def same(stored, replayed):\n    return stored == replayed\n",
    "makers": "import asyncio, atexit, os, pathlib, subprocess, sys, threading\n"
    "from milepost.actors.agent import Agent\n"
    "class Base(Agent):\n"
    "    async def run(self, episode):\n        pass\n"
    "class Opens(Base):\n"
    "    def __init__(self, path):\n        self.file = open(path)\n"
    "class Refuses(Base):\n"
    "    def __init__(self, level):\n        raise TypeError(f'no level {level}')\n"
    "class Leaves(Base):\n"
    "    def __init__(self):\n        os._exit(7)\n"
    "class Hangs(Base):\n"
    "    def __init__(self):\n        threading.Event().wait()\n"
    "class Loops(Base):\n"
    "    def __init__(self):\n        self.loop = asyncio.get_running_loop()\n"
    "class Threads(Base):\n"
    "    def __init__(self):\n"
    "        threading.Thread(target=threading.Event().wait).start()\n"
    "class Works(Base):\n"
    "    def __init__(self):\n"
    "        waits = threading.Event().wait\n"
    "        asyncio.get_running_loop().run_in_executor(None, waits)\n"
    "        atexit.register(pathlib.Path(__file__).with_name('ended').touch)\n"
    "class Serves(Base):\n"
    "    def __init__(self):\n"
    "        code = 'import signal; signal.pause()'\n"
    "        words = [sys.executable, '-c', code]\n"
    "        child = subprocess.Popen(words, start_new_session=True)\n"
    "        pathlib.Path(__file__).with_name('pid').write_text(str(child.pid))\n"
    "class Starts(Base):\n"
    "    async def start(self):\n        raise OSError('nobody is there yet')\n",
    "starts": "import pathlib, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    "pathlib.Path(__file__).with_name('pid').write_text(str(child.pid))\n"
    "def keep(rewards):\n    return ''\n",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        (tmp_path / f"user_{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def prompts(path: str) -> Target:
    return Target("prompts", path, "$.p", {"split": "train", "seed": 1, "options": {}})


def faults(*targets: Target, deadline_s: float = 30.0) -> list[tuple[str, str]]:
    return [(target.path, fault.what) for target, fault in probe(targets, deadline_s)]


def test_code_that_fits_its_calls_has_no_fault() -> None:
    assert (
        faults(
            prompts("user_good:prompts"),
            Target("filter", "user_good:keep", "$.f"),
            Target("create", "user_good:create", "$.c"),
        )
        == []
    )


def test_each_way_not_to_fit_is_told_in_its_own_words() -> None:
    found = faults(
        prompts("user_odd:none"),
        prompts("user_odd:words"),
        prompts("user_odd:breaks"),
        prompts("user_odd:two"),
        prompts("user_odd:thing"),
        prompts("user_odd:wrods"),
        prompts("user_odd"),
        prompts(".user_odd:none"),
        prompts("user_nowhere:prompts"),
        prompts("user_raises:prompts"),
        prompts("user_needs:prompts"),
        Target("filter", "user_odd:number", "$.f"),
    )
    assert found == [
        ("user_odd:none", "user_odd:none for split 'train' yields nothing"),
        ("user_odd:words", "user_odd:words for split 'train' yields str"),
        ("user_odd:breaks", "user_odd:breaks for split 'train' raised KeyError: 'no such file'"),
        (
            "user_odd:two",
            "`user_odd:two` does not take (split, seed, options): too many positional arguments",
        ),
        ("user_odd:thing", "`user_odd:thing` is int, not a function"),
        ("user_odd:wrods", "module user_odd has no `wrods`"),
        ("user_odd", '"user_odd" is no import path'),
        (".user_odd:none", '".user_odd:none" is no import path'),
        ("user_nowhere:prompts", "no module called `user_nowhere`"),
        ("user_raises:prompts", "importing user_raises raised ValueError: not today"),
        (
            "user_needs:prompts",
            "importing user_needs raised ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("user_odd:number", "user_odd:number(an example) gave int"),
    ]


def test_the_line_that_is_wrong_is_told_and_not_one_of_the_interpreter_s(modules: Path) -> None:
    """A person opens it; a syntax error has no frame of its own."""
    targets = prompts("user_broken:x"), prompts("user_raises:x"), prompts("user_odd:breaks")
    remedies = [fault.remedy for _, fault in probe(targets, 30.0)]
    expected = [("broken", 2), ("raises", 1), ("odd", 6)]
    assert remedies == [f"see {modules}/user_{name}.py:{line}" for name, line in expected]


def agent(name: str, module: str = "agents", **options: object) -> Target:
    made = {"options": options, "data_options": {"split": 1}}
    return Target("agent", f"user_{module}:{name}", "$.a", made)


def test_an_agent_derives_from_the_base_and_has_one_async_method() -> None:
    found = faults(
        agent("Good", level=3),
        agent("Heir"),
        Target("reward", "user_agents:reward", "$.r"),
        Target("reward", "user_agents:slow_reward", "$.r"),
        Target("matcher", "user_agents:same", "$.m"),
        agent("Good", x=3),
        agent("Lazy"),
        agent("Sync"),
        agent("Narrow"),
        agent("Stranger"),
        agent("function"),
        Target("reward", "user_agents:pair", "$.r"),
    )
    stranger = "is no subclass of milepost.actors.agent.Agent"
    assert found == [
        (
            "user_agents:Good",
            "`user_agents:Good` does not take its options: got an unexpected keyword argument 'x'",
        ),
        ("user_agents:Lazy", "`user_agents:Lazy` has no method run"),
        ("user_agents:Sync", "`user_agents:Sync.run` is not async"),
        (
            "user_agents:Narrow",
            "`user_agents:Narrow.run` does not take (self, episode): too many positional arguments",
        ),
        ("user_agents:Stranger", f"`user_agents:Stranger` {stranger}"),
        ("user_agents:function", f"`user_agents:function` {stranger}"),
        (
            "user_agents:pair",
            "`user_agents:pair` does not take (given): missing a required argument: 'reply'",
        ),
    ]


def test_an_agent_that_cannot_be_made_is_told_by_its_exception(modules: Path) -> None:
    """A file that is not there, an option it does not like: its actor would die of it, later."""
    found = list(
        probe(
            (
                agent("Opens", "makers", path="no/such/file"),
                agent("Opens", "makers", path=os.devnull),
                agent("Refuses", "makers", level=3),
                agent("Loops", "makers"),
                agent("Starts", "makers"),
            ),
            30.0,
        )
    )
    raised = "FileNotFoundError: [Errno 2] No such file or directory: 'no/such/file'"
    assert [fault.what for _, fault in found] == [
        f"making `user_makers:Opens` raised {raised}",
        "agent 'user_makers:Refuses' refuses its options {'level': 3}: no level 3",
    ]
    remedies = [fault.remedy for _, fault in found]
    line = f"{modules}/user_makers.py:8"
    assert remedies[0] == f"see {line}; what may fail for a while belongs into `start`"


def test_an_agent_whose_making_ends_or_blocks_the_process_is_named(modules: Path) -> None:
    """And one that leaves a thread behind, or work for one, holds nobody up."""
    left = (agent("Threads", "makers"), agent("Works", "makers"))
    assert faults(agent("Leaves", "makers"), *left, agent("Good")) == [
        ("user_makers:Leaves", "loading `user_makers:Leaves` ended the process with exit code 7")
    ]
    assert (modules / "ended").exists(), "what a module does at the end of its process is done"
    ((_, fault),) = probe((agent("Hangs", "makers"),), 3.0, "system.timeouts.ready_s")
    assert fault.what == "loading `user_makers:Hangs` took longer than system.timeouts.ready_s = 3"
    assert fault.remedy.endswith("nor in __init__: what takes its time belongs into `start`")


def test_code_that_ends_its_process_is_named_and_hides_nothing_else() -> None:
    """The rest is still looked at: a person repairs all of it at once."""
    found = faults(
        prompts("user_ends:x"),
        prompts("user_odd:none"),
        prompts("user_dies:x"),
        prompts("user_leaves:x"),
        prompts("user_good:prompts"),
    )
    assert found == [
        ("user_ends:x", "loading `user_ends:x` ended the process with exit code 3"),
        ("user_odd:none", "user_odd:none for split 'train' yields nothing"),
        ("user_dies:x", "loading `user_dies:x` ended the process with SIGKILL"),
        (
            "user_leaves:x",
            "loading `user_leaves:x` ended the process with exit code 1: I would rather not",
        ),
    ]


def test_code_that_hangs_is_killed_at_its_deadline() -> None:
    found = faults(prompts("user_hangs:x"), prompts("user_good:prompts"), deadline_s=3.0)
    assert found == [
        ("user_hangs:x", "loading `user_hangs:x` took longer than system.timeouts.hello_s = 3")
    ]


def test_what_the_code_has_started_is_gone_afterwards(modules: Path) -> None:
    """A server of its own session, too, which no signal to a group reaches."""
    for target in (Target("filter", "user_starts:keep", "$.f"), agent("Serves", "makers")):
        assert faults(target) == []
        pid = int((modules / "pid").read_text(encoding="utf-8"))
        started = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
        gone, alive = psutil.wait_procs(started, 10)
        assert not alive, gone


def test_a_killed_check_takes_its_child_along(modules: Path) -> None:
    """Nobody would be left to end code that hangs."""
    os.mkfifo(modules / "fifo")
    script = (
        "from milepost.supervisor.checks.code import probe\n"
        "from milepost.supervisor.probe import Target\n"
        "print(list(probe((Target('filter', 'user_waits:x', '$.f'),), 600.0)))\n"
    )
    check = subprocess.Popen([sys.executable, "-P", "-c", script])
    child = psutil.Process(int((modules / "fifo").read_text(encoding="utf-8")))
    check.kill()
    check.wait()
    assert child.wait(timeout=20) is None


def test_a_killed_check_leaves_no_file_behind(
    modules: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what cannot be cleaned up afterwards, since whoever would clean was killed."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    os.mkfifo(modules / "fifo")
    script = (
        "from milepost.supervisor.checks.code import probe\n"
        "from milepost.supervisor.probe import Target\n"
        "print(list(probe((Target('filter', 'user_waits:x', '$.f'),), 600.0)))\n"
    )
    check = subprocess.Popen([sys.executable, "-P", "-c", script])
    child = psutil.Process(int((modules / "fifo").read_text(encoding="utf-8")))
    check.kill()
    check.wait()
    child.wait(timeout=20)
    assert list(folder.iterdir()) == []


def test_a_prompt_that_leaves_no_room_is_named_with_its_line(modules: Path) -> None:
    """Else it is met when its turn comes, hours later, and only its group is given up."""
    tokenizer = train_tokenizer(["one two three"], ("kai",), size=267)
    write_tokenizer(modules, tokenizer, context_tokens_max=1024)
    file = modules / "asked.jsonl"
    lines = [{"messages": [{"role": "user", "content": "one " * count}]} for count in (1, 900, 2)]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    options = {
        "source": str(file), "split": "train", "seed": 0, "options": {},
        "folder": str(modules), "family": "qwen3", "template_options": {},
        "tokens_max": 800, "limit": "limits.tokens_max", "whole": False,
    }  # fmt: skip
    [(_, what)] = faults(Target("lengths", str(file), "$.data.prompts", options))
    assert what.startswith("1 of 3 prompts are too long: `asked:2` has ")
    assert what.endswith("and a reply needs one at least, limits.tokens_max is 800")
    roomy = options | {"tokens_max": 8000}
    assert faults(Target("lengths", str(file), "$.data.prompts", roomy)) == []
    late = options | {"source": "user_late:prompts"}
    [(_, fault)] = probe((Target("lengths", "user_late:prompts", "$.p", late),), 30.0)
    assert fault.what == "reading the prompts raised KeyError: 'the second one'"
    assert fault.remedy == f"see {modules}/user_late.py:4", "it is not the import that failed"


def test_a_tokenizer_that_does_not_fit_its_model_is_told(modules: Path) -> None:
    """An id without a row ends an engine, in the first episode whose text has such a token."""
    tokenizer = train_tokenizer(["one two three"], ("kai",), size=267)
    write_tokenizer(modules, tokenizer, context_tokens_max=1024)
    options: dict[str, Any] = {"family": "qwen3", "options": {}, "vocabulary": 267}

    def found(**changes: object) -> list[tuple[str, str]]:
        target = Target("template", str(modules), "$.model.family", options | changes)
        return [(fault.what, fault.where) for _, fault in probe((target,), 30.0)]

    assert found() == []
    told = "the tokenizer needs 267 rows, and the model has 266 (vocab_size)"
    assert found(vocabulary=266) == [(told, "$.model.path")]
    tokenizer.add_special_tokens(["<pad>"])
    write_tokenizer(modules, tokenizer, context_tokens_max=1024)
    assert found() == [], "added by its user for padding, which nothing here does"
    template = modules / "chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    template.write_text(text + "{# <pad> #}", encoding="utf-8")
    assert found() == [(told.replace("7", "8").replace("6 (", "7 ("), "$.model.path")]
    template.write_text(text, encoding="utf-8")
    path = modules / "tokenizer.json"
    path.write_text("{}", encoding="utf-8")
    ((what, where),) = found()
    assert what.startswith(f"no session of family qwen3 can be made: {path} is no tokenizer: ")
    assert where == "", "where the target stands"
