"""Lines of conversation files: the forms that are taken, and what is said of all others."""

import json

import pytest

from input_pipeline.conversation import conversation_text

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": TURNS, "id": 7},
        {"prompt": "hi", "completion": "hello"},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
    ],
    ids=["messages", "prompt", "sharegpt"],
)
def test_the_usual_forms_are_one(record) -> None:
    assert json.loads(conversation_text(record)) == {"messages": TURNS}


def test_what_templates_may_show_is_kept_and_nulls_are_not() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}], "name": None}
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = json.loads(conversation_text({"messages": [TURNS[0], call], "tools": tools}))
    assert found["tools"] == tools
    assert found["messages"][1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "f"}],
    }


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["missing", "null"])
def test_a_call_of_a_tool_needs_no_content(content) -> None:
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    found = json.loads(conversation_text({"messages": [TURNS[0], {**call, **content}]}))
    assert found["messages"][1] == call
    with pytest.raises(ValueError, match="content"):
        conversation_text({"messages": [TURNS[0], {**call, **content, "tool_calls": []}]})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "x"}, r"not a conversation: it has \['text'\].*Allowed are .*messages"),
        ({"messages": "x"}, r"not a conversation.*Allowed are"),
        ({"messages": []}, "has no messages; leave the line out"),
        ({"messages": ["x"]}, r"message 1 is str, not an object.*Allowed are"),
        ({"messages": [{"content": "x"}]}, r"message 1 has no 'role'; it has \['content'\]"),
        ({"messages": [*TURNS, {"role": "user"}]}, r"message 3 has no 'content'"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "content of message 1 is list, not"),
        ({"messages": [{"role": "user", "content": None}]}, "content of message 1 is NoneType"),
        ({"messages": [{"role": 1, "content": ""}]}, "role of message 1 is int, not text"),
        ({"messages": TURNS, "tools": "f"}, "tools is str, not a list of JSON schemas"),
        ({"prompt": "x"}, r"not a conversation: it has \['prompt'\]"),
        ({"conversations": [{"from": "bing", "value": ""}]}, r"from 'bing'; allowed are \['gpt'"),
        ({"conversations": [{"value": ""}]}, "message 1 has no 'from' and 'value'"),
    ],
)
def test_what_is_no_conversation_is_refused_with_what_is_allowed(record, message) -> None:
    with pytest.raises(ValueError, match=message):
        conversation_text(record)
