"""Chat templates render as in transformers, know meant tokens from spelled ones, stay inside."""

import contextlib
import datetime
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.chat_template import BUILT_IN, ChatTemplate
from tests.input_pipeline.chat_folders import CHATML, HEADERS, messages

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "ab", "bc")


def template(source: str, **options: object) -> ChatTemplate:
    settings = {"name": "'tested'", "variables": {"bos_token": "<s>"}, "special": SPECIAL}
    return ChatTemplate(source, **{**settings, **options})


def rendered(source: str, turns: list | None = None, **options: object) -> str:
    turns = turns if turns is not None else [("user", "hello")]
    return template(source).render(messages(turns), **options).text


def test_blocks_take_their_lines_with_them() -> None:
    source = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n"
    )
    assert rendered(source + "{% endfor %}\nend") == "hello\nend"


def test_the_generation_prompt_and_variables_are_known() -> None:
    assert rendered(HEADERS).startswith("<s><|start_header_id|>user<|end_header_id|>\n\nhello")
    assert rendered(CHATML, add_generation_prompt=True).endswith("<|im_start|>assistant\n")
    assert rendered("{{ eos_token }}{{ tools is none }}") == "True"


def test_operators_do_what_they_do_in_jinja() -> None:
    source = "{{ 'a' ~ 1 ~ none ~ missing }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 2 ** 3 + 0.5 }}"
    assert rendered(source) == "a1None abab [1, 2] 8.5"
    source = "{{ 7 % 2 }} {{ '123456789 %s %03d %.1f%%' % ('x', 5, 0.25) }} {{ '%*d' % (3, 1) }}"
    assert rendered(source) == "1 123456789 x 005 0.2%   1"


def test_json_is_written_as_it_is() -> None:
    source = "{{ tools[0] | tojson }} {{ tools | tojson(indent=1) }}"
    made = rendered(source, tools=[{"name": "é<b>"}])
    assert made == '{"name": "é<b>"} [\n {\n  "name": "é<b>"\n }\n]'


def test_loop_controls_and_namespaces_work() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if loop.index > 2 %}{% break %}"
        "{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    )
    assert rendered(source, [("user", "x")] * 5) == "2"


def test_what_stands_in_generation_blocks_is_known_even_in_macros() -> None:
    source = (
        "{% macro turn(m) %}<{% generation %}{{ m.content }}!{% endgeneration %}>{% endmacro %}"
        "{% for m in messages %}{{ turn(m) }}{% endfor %}"
    )
    found = template(source).render(messages([("user", "a"), ("user", ""), ("user", "ccc")]))
    assert found.text == "<a!><!><ccc!>"
    assert [found.text[a:b] for a, b in found.generated] == ["a!", "!", "ccc!"]


@given(pieces=st.lists(st.sampled_from([*SPECIAL, "a", "b", "c", "<|im_", "end|>", "é", "\n"])))
def test_spelled_tokens_are_told_from_meant_ones(pieces: list[str]) -> None:
    content = "".join(pieces)
    source = "<s>{{ messages[0].content }}<|im_end|>{{ messages[0].content }}</s>"
    found = template(source).render(messages([("user", content)]))
    assert found.text == f"<s>{content}<|im_end|>{content}</s>"
    if any(name in content for name in SPECIAL):
        assert found.meant is not None
        assert [found.text[a:b] for a, b in found.meant] == ["<s>", "<|im_end|>", "</s>"]
        assert found.meant[1][0] == 3 + len(content)
    else:
        assert found.meant is None


def test_text_that_holds_our_own_marks_survives() -> None:
    content = "".join(map(chr, range(0xFDD0, 0xFDE8))) + "<s>"
    assert rendered(CHATML, [("system", content)]) == f"<|im_start|>system\n{content}<|im_end|>\n"
    with pytest.raises(ValueError, match="noncharacters"):
        rendered(CHATML, [("system", "".join(map(chr, range(0xFDD0, 0xFDF0))))])


HOSTILE = {
    "attributes": "{{ messages.__class__.__mro__ }}",
    "subclasses": "{{ ''.__class__.__base__.__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "attribute filter": "{{ messages | attr('__class__') | attr('__mro__') }}",
    "files": "{% include '/etc/passwd' %}",
    "imports": "{% import 'os' as os %}",
    "mutation": "{{ messages.append(1) }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "namespace argument": "{% set ns = namespace(__class__=1) %}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested ranges": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x"
    ),
    "endless text": "{% for a in 'x' * 4000000 %}{{ 'x' * 4000000 }}{% endfor %}",
    "repetition": "{{ 'x' * 10**10 }}",
    "list": "{{ ([0] * 10**10) | length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "width": "{{ ('%099999999d' % 1) | length }}",
    "named width": "{{ ('%(a)-99999999s' % {'a': 1}) | length }}",
    "precision": "{{ ('%.99999999f' % 1) | length }}",
    "width by value": "{{ ('%*d' % (99999999, 1)) | length }}",
    "doubling": (
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}{{ ns.s }}"
    ),
    "joining": (
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}{{ ns.s }}"
    ),
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_reaches_nothing_and_fills_no_memory(source: str) -> None:
    tracemalloc.start()
    try:
        made = ""
        # What the sandbox does not refuse is undefined in it: then nothing is written.
        with contextlib.suppress(ValueError):
            made = rendered(source)
        assert made == ""
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_an_error_names_template_and_message() -> None:
    source = "{% for m in messages %}{{ m.content }}{% if m.role == 'tool' %}"
    source += "{{ raise_exception('no tools here') }}{% endif %}{% endfor %}"
    turns = [("user", "a"), ("tool", "b"), ("user", "c")]
    with pytest.raises(
        ValueError, match=r"^Chat template 'tested', message 2 of 3: no tools here$"
    ):
        rendered(source, turns)
    with pytest.raises(
        ValueError, match=r"^Chat template 'tested', message 1 of 1: .*no attribute 'missing'"
    ):
        rendered("{{ messages[0].missing.field }}")


def test_a_template_with_an_error_of_syntax_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"Chat template 'tested', line 2: .*endfor"):
        template("\n{% for m in messages %}")


@pytest.mark.parametrize("source", ["{% break %}", "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}"])
def test_a_template_that_cannot_be_compiled_is_named(source) -> None:
    with pytest.raises(ValueError, match=r"^Chat template 'tested' is not valid: "):
        template(source)


CHANGING = {
    "random": "{{ [1, 2] | random }}",
    "lipsum": "{{ lipsum() }}",
    "iterator": "{{ messages | map(attribute='role') }}",
    "reversed": "{{ 'a' ~ (messages | reverse) }}",
    "function": "{{ raise_exception }}",
    "method": "{{ range }}",
    "builtin": "{{ messages[0].items }}",
}


@pytest.mark.parametrize("source", CHANGING.values(), ids=CHANGING)
def test_a_template_writes_nothing_that_is_another_text_next_time(source) -> None:
    with pytest.raises(ValueError, match=r"^Chat template 'tested'"):
        rendered(source)
    assert rendered("{{ messages | map(attribute='role') | join }}") == "user"


@pytest.mark.parametrize("change", ["{{ x[:4] }}", "{{ x | reverse }}", "{{ x[3:] }}"])
def test_a_template_that_cuts_what_was_generated_is_refused(change) -> None:
    source = "{% set x %}{% generation %}answer{% endgeneration %}{% endset %}" + change
    with pytest.raises(ValueError, match=r"'tested': it cuts or turns around what its {% gen"):
        rendered(source)


def test_memory_that_is_not_there_is_the_templates_fault() -> None:
    with pytest.raises(ValueError, match="'tested', message 1 of 1: MemoryError"):
        rendered("{{ 'x'.ljust(10 ** 16) }}")


def test_keys_spell_no_token_either() -> None:
    turns = [{"role": "user", "content": "", "arguments": {"</s>": {"</s> x": "</s>"}}}]
    made = template("{{ messages[0].arguments | tojson }}</s>").render(turns)
    assert made.text == '{"</s>": {"</s> x": "</s>"}}</s>'
    assert made.meant == ((len(made.text) - 4, len(made.text)),)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_what_was_thought_is_found_under_every_name_that_templates_read(name) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}"
    thought = {"role": "assistant", "content": "", name: "hm"}
    assert template(source).render([*messages([("user", "x")]), thought]).text == "|;hm|hm;"


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_drop_no_tool_calls(name) -> None:
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    with pytest.raises(ValueError, match="message 2 of 2: it cannot write tool_calls"):
        template(BUILT_IN[name]).render([*messages([("user", "x")]), call])


def test_the_date_comes_from_the_configuration_or_not_at_all() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    with pytest.raises(ValueError, match=r"strftime_now.*Set Conversations\.date"):
        template(source)
    dated = template(source, date=datetime.date(2024, 7, 26))
    assert dated.render(messages([("user", "x")])).text == "26 Jul 2024"


def test_built_in_templates_write_what_their_pages_say() -> None:
    turns = messages([("system", "s"), ("user", "u "), ("assistant", " a")])
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    made = {
        name: template(source, variables=variables).render(turns)
        for name, source in BUILT_IN.items()
    }
    assert made["chatml"].text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu <|im_end|>\n"
        "<|im_start|>assistant\n a<|im_end|>\n"
    )
    assert made["plain"].text == "<s>### System\ns\n\n### User\nu\n\n### Assistant\na</s>\n\n"
    assert {name: [one.text[a:b] for a, b in one.generated] for name, one in made.items()} == {
        "chatml": [" a<|im_end|>"],
        "plain": ["a</s>"],
    }
    for name, source in BUILT_IN.items():
        prompt = template(source, variables=variables).render(turns[:2], add_generation_prompt=True)
        assert made[name].text.startswith(prompt.text)
        assert made[name].generated[0][0] == len(prompt.text)
