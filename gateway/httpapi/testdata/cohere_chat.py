"""The official cohere client chats with an engine whose answers a test has written: the last message says which. Called with
the base URL; prints ok."""

import sys

import cohere

client = cohere.ClientV2(base_url=sys.argv[1], api_key="none", timeout=60)


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def messages(name):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": name}]


def outline(answer):
    """What an answer says, without ids."""
    said = answer.message
    texts = [(c.type, getattr(c, c.type)) for c in said.content or []]
    calls = [(c.id, c.function.name, c.function.arguments) for c in said.tool_calls or []]
    return answer.finish_reason, texts, calls, answer.usage.tokens.input_tokens, answer.usage.billed_units.output_tokens


def streamed(name):
    """The same of a stream."""
    texts, calls, open_, end = {}, {}, set(), None
    for e in client.chat_stream(model="chat", messages=messages(name)):
        assert end is None, f"{e.type} follows the end"
        if e.type in ("content-start", "tool-call-start"):
            same(e.index, len(texts) + len(calls))
            open_.add(e.index)
        elif e.type in ("content-delta", "tool-call-delta"):
            assert e.index in open_, e
        if e.type == "content-start":
            texts[e.index] = (e.delta.message.content.type, "")
        elif e.type == "content-delta":
            kind, text = texts[e.index]
            texts[e.index] = (kind, text + getattr(e.delta.message.content, kind))
        elif e.type == "tool-call-start":
            call = e.delta.message.tool_calls
            calls[e.index] = (call.id, call.function.name, call.function.arguments)
        elif e.type == "tool-call-delta":
            *head, text = calls[e.index]
            calls[e.index] = (*head, text + e.delta.message.tool_calls.function.arguments)
        elif e.type in ("content-end", "tool-call-end"):
            open_.remove(e.index)
        elif e.type == "message-end":
            end = e.delta
    texts, calls = list(texts.values()), list(calls.values())
    same(open_, set())
    return end.finish_reason, texts, calls, end.usage.tokens.input_tokens, end.usage.billed_units.output_tokens


CALLS = [("c1", "weather", '{"city":"Rome"}'), ("c2", "time", "")]
for name, want in {
    "call": ("TOOL_CALL", [("thinking", "He wants the weather.")], CALLS, 11, 22),
    "length": ("MAX_TOKENS", [("text", "a")], [], 11, 22),
}.items():
    same(outline(client.chat(model="chat", messages=messages(name))), want)
    same(streamed(name), want)

end = list(client.chat_stream(model="chat", messages=messages("broken")))[-1]
same((end.type, end.delta.finish_reason), ("message-end", "ERROR"))
print("ok")
