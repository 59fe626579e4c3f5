"""The official anthropic client against a running gateway with the default catalogue.

Called with the gateway's base URL. The cases run in order.
"""

import sys

import anthropic

from cases import case, main, same

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", timeout=180, max_retries=0)
LLM = "gemma-3-270m"
HELLO = [{"role": "user", "content": "Once upon a time"}]
TOOL = {"name": "get", "description": "Gets it.", "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}}}


def say(messages, **more):
    return client.messages.create(model=LLM, max_tokens=8, messages=messages, **more)


@case
def message():
    a = say(HELLO, system="Tell stories.")
    same((a.type, a.role, a.stop_reason, a.content[0].type), ("message", "assistant", "max_tokens", "text"))
    same(a.usage.output_tokens, 8)
    assert a.usage.input_tokens > 4 and a.content[0].text.strip(), a


@case
def streamed_message():
    with client.messages.stream(model=LLM, max_tokens=8, messages=HELLO) as s:
        kinds = [e.type for e in s]
        last = s.get_final_message()
    same((kinds[0], kinds[-1]), ("message_start", "message_stop"))
    assert kinds.count("content_block_delta") > 4, kinds
    same((last.stop_reason, last.usage.output_tokens), ("max_tokens", 8))


@case
def turns_with_tools():
    a = say(
        HELLO
        + [
            {"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {"what": "y"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42"}]}]},
        ],
        tools=[TOOL],
    )
    same(a.stop_reason in ("max_tokens", "tool_use", "end_turn"), True)


@case
def tokens_are_counted():
    short = client.messages.count_tokens(model=LLM, messages=HELLO).input_tokens
    longer = client.messages.count_tokens(model=LLM, messages=HELLO, system="Tell stories.").input_tokens
    assert 4 < short < longer, (short, longer)


@case
def models():
    page = client.models.list()
    ids = [m.id for m in page]
    assert LLM in ids and "minilm-l6-v2" not in ids, ids
    same((page.has_more, page.first_id, page.last_id), (False, ids[0], ids[-1]))
    m = client.models.retrieve(LLM)
    same((m.type, m.id, m.display_name), ("model", LLM, LLM))
    assert m.created_at.year > 2000, m


@case
def unknown_model():
    try:
        client.messages.create(model="gemma-9", max_tokens=8, messages=HELLO)
    except anthropic.NotFoundError as e:
        same(e.body["error"]["type"], "not_found_error")
        assert "gemma-9" in e.body["error"]["message"], e.body
    else:
        raise AssertionError("no error")


main()
