"""Chat templates are rendered as the libraries that publish them render them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.actors.session.families import bundled_template
from milepost.actors.session.text.sources import hash_of_sources, template_sources
from milepost.actors.session.text.template import ChatTemplate, RenderFailed, load_template

HELLO = [{"role": "user", "content": "<é> & 'x'"}]


def render(source: str, **fields: object) -> str:
    """One rendering of the hello."""
    template = ChatTemplate({"default": source}, named_tokens={"bos_token": "<s>"})
    return template.render(HELLO, **{"generate": False, **fields})  # type: ignore[arg-type]


def test_blocks_are_trimmed_and_names_are_there() -> None:
    """A newline after a block, and blanks before it, are no part of the text."""
    source = "{{ bos_token }}\n  {% for m in messages %}\n{{ m.content }}!\n  {% endfor %}\nend"
    assert render(source) == "<s>\n<é> & 'x'!\nend"


def test_json_is_written_without_html_escapes_and_in_order() -> None:
    """Tool schemas are JSON the model was trained on: another spelling is another prompt."""
    tools = [{"b": "<é>", "a": [1, {"c": None}]}]
    assert render("{{ tools | tojson }}", tools=tools) == '[{"b": "<é>", "a": [1, {"c": null}]}]'
    spelled = render("{{ tools | tojson(indent=1, sort_keys=true) }}", tools=tools)
    assert spelled == json.dumps(tools, indent=1, sort_keys=True, ensure_ascii=False)
    assert render("{{ tools is none }}") == "True"


def test_loops_may_break_and_continue() -> None:
    """Several published templates do."""
    source = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
    source += "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source) == "02"


def test_the_date_stands_still() -> None:
    """A conversation over midnight must not see its own prompt change."""
    template = ChatTemplate({"default": "{{ strftime_now('%Y %f') }}"})
    assert template.render(HELLO, generate=False) == template.render(HELLO, generate=False)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ ''.__class__.mro() }}", "unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
    ],
)
def test_what_a_template_raises_has_a_name(source: str, told: str) -> None:
    """Foreign code must not end the session actor, reach its objects, or fail without a word."""
    with pytest.raises(RenderFailed, match=told):
        render(source)


def test_a_broken_template_is_refused_when_it_is_loaded() -> None:
    """Not at the first conversation."""
    with pytest.raises(RenderFailed, match="no valid Jinja: line 2"):
        ChatTemplate({"default": "\n{% if %}"})
    with pytest.raises(RenderFailed, match="no chat template named default"):
        ChatTemplate({"rag": ""})


def test_generation_blocks_are_transparent_and_can_be_located() -> None:
    """They say exactly what the assistant produces, for supervised training."""
    source = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}</s>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate({"default": source})
    messages = [*HELLO, {"role": "assistant", "content": "yes"}, *HELLO]
    messages.append({"role": "assistant", "content": ""})
    text, spans = template.render_generated(messages)
    assert text == template.render(messages, generate=False)
    assert [text[start:end] for start, end in spans] == ["yes</s>", "</s>"]
    assert template.marks_generation
    with pytest.raises(RenderFailed, match="cannot be located"):
        template.render_generated([{"role": "assistant", "content": "\ue0f1"}])


def test_the_template_is_found_where_publishers_put_it(tmp_path: Path) -> None:
    """A file of its own wins; the configuration may hold one text, or several by name."""
    with pytest.raises(RenderFailed, match="no chat template in"):
        load_template(tmp_path, named_tokens={})
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": named}))
    several = load_template(tmp_path, named_tokens={})
    assert several.render(HELLO, generate=False) == "plain"
    assert several.render(HELLO, [{"name": "f"}], generate=False) == "tools"
    config.write_text(json.dumps({"chat_template": "one"}))
    one = load_template(tmp_path, named_tokens={})
    assert one.render(HELLO, generate=False) == "one"
    (tmp_path / "chat_template.jinja").write_text("own")
    own = load_template(tmp_path, named_tokens={}, options={"enable_thinking": False})
    assert own.render(HELLO, generate=False) == "own"
    assert len({several.content_hash, one.content_hash, own.content_hash}) == 3


def test_options_reach_every_rendering() -> None:
    """Set once for the run; a request cannot change them."""
    template = ChatTemplate(
        {"default": "{{ enable_thinking }}"}, options={"enable_thinking": False}
    )
    assert template.render(HELLO, generate=True) == "False"


def test_the_hash_of_a_template_is_read_off_the_model_s_folder_without_rendering(
    tmp_path: Path,
) -> None:
    """The trainer's door has no renderer, and must find what the session rendered with."""
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "{{ messages }}"}', encoding="utf-8")
    one = load_template(tmp_path, named_tokens={})
    assert hash_of_sources(template_sources(tmp_path)) == one.content_hash
    config.write_text(
        '{"chat_template": [{"name": "default", "template": "a"},'
        ' {"name": "tool_use", "template": "b"}]}',
        encoding="utf-8",
    )
    several = load_template(tmp_path, named_tokens={})
    assert hash_of_sources(template_sources(tmp_path)) == several.content_hash
    assert several.content_hash != one.content_hash
    config.unlink()
    assert template_sources(tmp_path) == {}
    bundled = bundled_template("deepseek_v3.2")
    own = load_template(tmp_path, named_tokens={}, bundled=bundled)
    assert hash_of_sources(template_sources(tmp_path, bundled)) == own.content_hash
    assert bundled_template("qwen3") == bundled_template("no such family") == ""


WRITES_THREE_ROLES = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') or m.role == 'system' and "
    "loop.first %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
"""As many published templates: what they do not know, they leave out without a word."""


def said(*roles: str) -> list[dict[str, str]]:
    """A conversation of these roles, each with its name in capitals."""
    return [{"role": role, "content": role.upper()} for role in roles]


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    """OpenAI's clients send one for the other: the model would never see its instructions."""
    template = ChatTemplate({"default": WRITES_THREE_ROLES})
    text = template.render(said("developer", "user"), generate=False)
    assert text == "[system]DEVELOPER[user]USER"
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    plain = ChatTemplate({"default": source})
    text = plain.render(said("developer", "user"), generate=False)
    assert text == "[developer]DEVELOPER[user]USER"


def test_a_developer_is_the_system_where_the_template_refuses_the_role() -> None:
    """Many published templates end so: a conversation of OpenAI's clients never began."""
    refusing = "{% for m in messages %}{% if m.role in roles %}[{{ m.role }}]{{ m.content }}"
    refusing += "{% else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}"
    template = ChatTemplate({"default": refusing}, options={"roles": ["system", "user"]})
    for roles in (("developer", "user"), ("user", "developer", "user")):
        messages = said(*roles)
        template.check_instructions(messages, is_begun=False)
        text = template.render(messages, generate=False)
        assert text == "".join(
            f"[{'system' if role == 'developer' else role}]{role.upper()}" for role in roles
        )
    neither = ChatTemplate({"default": refusing}, options={"roles": ["user"]})
    neither.check_instructions(said("developer", "user"), is_begun=False)
    with pytest.raises(RenderFailed, match="raised Unexpected message role"):
        neither.render(said("developer", "user"), generate=False)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
WRITES_ALL = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WRITES_USERS = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize(
    ("sources", "lost_with_tools"),
    [
        ({"default": WRITES_USERS, "tool_use": "{{ tools[0].type }}" + WRITES_ALL}, False),
        ({"default": WRITES_ALL, "tool_use": WRITES_USERS}, True),
        (
            {"default": f"{{% if tools %}}{WRITES_ALL}{{% else %}}{WRITES_USERS}{{% endif %}}"},
            False,
        ),
    ],
    ids=["default loses", "tool_use loses", "no tools lose"],
)
def test_instructions_are_looked_for_in_the_template_that_is_rendered(
    sources: dict[str, str],
    lost_with_tools: bool,  # noqa: FBT001
    role: str,
) -> None:
    """A list of templates has one for tools: what it writes, the other may leave out."""
    template = ChatTemplate(sources)
    for tools in ([], [TOOL]):
        is_lost = bool(tools) == lost_with_tools
        assert (role.upper() in template.render(said(role), tools, generate=False)) != is_lost
        if is_lost:
            with pytest.raises(RenderFailed, match=f"writes nothing of a {role} message"):
                template.check_instructions(said(role), tools, is_begun=False)
        else:
            template.check_instructions(said(role), tools, is_begun=False)


def test_a_developer_is_the_system_by_the_template_that_is_rendered() -> None:
    """Where the one for tools knows developers, their words are not the system's, and else are."""
    template = ChatTemplate({"default": WRITES_THREE_ROLES, "tool_use": WRITES_ALL})
    messages = said("developer", "user")
    assert template.render(messages, generate=False) == "[system]DEVELOPER[user]USER"
    assert template.render(messages, [TOOL], generate=False) == "[developer]DEVELOPER[user]USER"


@pytest.mark.parametrize("content", ["", " \n", None])
def test_instructions_that_say_nothing_are_not_missed(content: str | None) -> None:
    """Harnesses send an empty second system message; of it nothing can be lost."""
    template = ChatTemplate({"default": WRITES_THREE_ROLES})
    empty: dict[str, Any] = {"role": "system", "content": content}
    messages = [*said("system"), empty, *said("user")]
    template.check_instructions(messages, is_begun=False)


def test_instructions_that_the_template_leaves_out_are_refused_by_place() -> None:
    """A harness would take the policy for disobedient, at every step of a run."""
    template = ChatTemplate({"default": WRITES_THREE_ROLES})
    for role in ("system", "developer"):
        told = f"writes nothing of a {role} message after other messages"
        template.check_instructions(said(role, "user"), is_begun=False)
        with pytest.raises(RenderFailed, match=rf"{told} \(message 1 of"):
            template.check_instructions(said("user", role, "user"), is_begun=False)
        with pytest.raises(RenderFailed, match=rf"{told} \(message 0 of"):
            template.check_instructions(said(role), is_begun=True)


def test_a_template_that_refuses_a_role_says_so_itself() -> None:
    """In its own words, which the client's people know."""
    source = "{% if messages[1].role == 'system' %}{{ raise_exception('not here') }}{% endif %}"
    strict = ChatTemplate({"default": source})
    messages = said("user", "system")
    strict.check_instructions(messages, is_begun=False)
    with pytest.raises(RenderFailed, match="raised not here"):
        strict.render(messages, generate=False)


def test_arguments_that_are_nested_beyond_reading_stay_text() -> None:
    """A client's own; where the template takes objects they are read, and that must not fail."""
    template = ChatTemplate(
        {"default": "{{ messages[0].tool_calls[0].function.arguments is string }}"},
        arguments_as_objects=True,
    )
    for arguments, is_text in (('{"a": 1}', False), ('{"a":' * 9_000 + "1" + "}" * 9_000, True)):
        call = {"function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        assert template.render([message], generate=False) == str(is_text)
