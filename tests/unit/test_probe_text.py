"""Calibration text: what ships, what a file holds, and chat templates of strangers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem_worker.checkpoint import CheckpointError, open_checkpoint
from tandem_worker.probe.prompts import Prompt, read_prompts, shipped, tokenize
from tandem_worker.probe.template import Message, Template, read_template, render
from unit.pairs import TINY_PAIR, copy_of

TALK = (Message("user", "Hi"), Message("assistant", "Hello"))
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"


def template(source: str) -> Template:
    return Template(source, Path("chat_template.jinja"), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.mark.parametrize("text", ["", "once upon a time", '{"text": "x"}', '{"prompt": ""}', '{"prompt": 3}', "[]",
                                  '{"messages": []}', '{"messages": [{"role": "user"}]}'])  # fmt: skip
def test_prompts_that_can_not_be_used_are_named_by_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_prompts(file)
    assert caught.value.finding.code == "TDM-PROMPTS-UNUSABLE"


def test_a_file_holds_texts_and_conversations(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    talk = {"messages": [message._asdict() for message in TALK]}
    file.write_text(json.dumps({"prompt": "Once"}) + "\n" + json.dumps(talk) + "\n")
    assert read_prompts(file) == (Prompt("Once"), Prompt("Hi\n\nHello", TALK))


def test_what_ships_is_many_kinds_of_text_and_one_that_is_long() -> None:
    prompts = shipped()
    assert read_prompts(None) == prompts
    assert len(prompts) >= 24
    assert [prompt.long for prompt in prompts] == [False] * (len(prompts) - 1) + [True]
    assert len(prompts[-1].text.split()) > 500
    for part in ("def merge", "SELECT", "Widerspruchsbeweis", "新幹線", "induction", "apiVersion"):
        assert any(part in prompt.text for prompt in prompts)


def test_texts_are_cut_and_begin_with_the_targets_own_first_token() -> None:
    rows = tokenize(shipped(), open_checkpoint(TINY_PAIR / "target"), 512, longest=512)
    assert max(map(len, rows[:-1])) <= 192 < len(rows[-1]) <= 512
    assert {row[0] for row in rows} == {0}


# --- chat templates --------------------------------------------------------------------------------------------------


def test_a_conversation_is_written_by_the_targets_own_template(tmp_path: Path) -> None:
    target = copy_of("target", tmp_path)
    config = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHATML}))
    found = read_template(open_checkpoint(target))
    assert found is not None
    assert render(found, [TALK, TALK[:1]]) == ["<|user|>Hi</s><|assistant|>Hello</s>", "<|user|>Hi</s>"]
    (target / "chat_template.jinja").write_text("{{ messages[0].content }}")  # the newer place counts
    newer = read_template(open_checkpoint(target))
    assert newer is not None
    assert render(newer, [TALK]) == ["Hi"]
    assert read_template(open_checkpoint(TINY_PAIR / "target")) is None


def test_what_published_templates_use_is_there() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m | tojson }} {{ strftime_now('%Y') | length }} {{ m.content.strip().upper() }}{% endfor %}"
    )
    assert render(template(source), [TALK]) == ['<s>{"role": "user", "content": "Hi"} 4 HI']


def test_what_a_template_marks_for_training_is_rendered_as_the_rest() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    assert render(template(source), [TALK]) == ["user: Hi;assistant: Hello;"]


@pytest.mark.parametrize("name", [["default"], {"a": 1}, 7, None])
def test_templates_under_names_that_are_no_text_are_passed_over(tmp_path: Path, name: object) -> None:
    target = copy_of("target", tmp_path)
    file = target / "tokenizer_config.json"
    several = [{"name": name, "template": "wrong"}, "no object", {"name": "default", "template": "right"}]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": several}))
    found = read_template(open_checkpoint(target))
    assert found is not None
    assert found.source == "right"


def test_a_machine_whose_processes_begin_with_much_address_space_renders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of many cores, for each of which libraries reserve some."""
    start = "import mmap\nreserved = mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_NORESERVE)\n"
    (tmp_path / "sitecustomize.py").write_text(start)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    assert render(template("{{ messages[0].content }}"), [TALK]) == ["Hi"]
    with pytest.raises(CheckpointError, match="more than 512 MiB"):
        render(template("{{ 'x' * 10**10 }}"), [TALK])


def test_the_process_for_templates_loads_nothing_else() -> None:
    asked = "import sys, tandem_worker.probe.template_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    assert "jinja2" in loaded
    assert not {"numpy", "torch", "pydantic", "tokenizers"} & set(loaded)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "stopped at the limit"),
        ("{{ 'x' * 10**10 }}", "more than 512 MiB"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
    ids=["loops", "grows", "escapes", "mutates", "broken", "refuses", "reads files"],
)
def test_a_template_that_misbehaves_is_stopped_and_named(
    source: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "stopped at the limit":  # the others end by themselves, and a busy machine takes its time
        monkeypatch.setattr("tandem_worker.probe.template.TIME_LIMIT_SECONDS", 1)
    with pytest.raises(CheckpointError) as caught:
        render(template(source), [TALK])
    assert caught.value.finding.code == "TDM-CHAT-TEMPLATE"
    assert why in caught.value.finding.message
