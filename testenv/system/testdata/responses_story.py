"""The Responses API as the official openai client uses it, against a running gateway with the default catalogue.

Called with the gateway's base URL. Streams are read through the client's own state machine (client.responses.stream), which
raises at events that do not fit together.
"""

import json
import sys

import openai

from cases import case, main, same

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=180)
LLM = "gemma-3-270m"

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome"]}}, "required": ["city"]},
    "strict": True,
}
ANSWER = {
    "format": {
        "type": "json_schema",
        "name": "answer",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}},
            "required": ["yes"],
            "additionalProperties": False,
        },
    }
}


def ask(words="Once upon a time", tokens=8, **more):
    return client.responses.create(model=LLM, input=words, temperature=0, max_output_tokens=tokens, **more)


def streamed(words="Once upon a time", tokens=8, **more):
    """The events of a stream and its last response."""
    with client.responses.stream(model=LLM, input=words, temperature=0, max_output_tokens=tokens, **more) as stream:
        events = list(stream)
    same([e.sequence_number for e in events], list(range(len(events))))
    same([e.type for e in events[:2]], ["response.created", "response.in_progress"])
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
    return events, events[-1].response


@case
def whole():
    r = ask(instructions="You tell stories.", metadata={"a": "b"})
    same(r.object, "response")
    same(r.model, LLM)
    same(r.status, "incomplete")
    same(r.incomplete_details.reason, "max_output_tokens")
    same(r.usage.output_tokens, 8)
    same(r.usage.total_tokens, r.usage.input_tokens + 8)
    same(r.instructions, "You tell stories.")
    same(r.metadata, {"a": "b"})
    same(r.max_output_tokens, 8)
    same(r.store, False)
    assert r.id.startswith("resp_") and r.output_text.strip(), r


@case
def a_chat_of_the_same_words_says_the_same():
    chat = client.chat.completions.create(
        model=LLM,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        temperature=0,
        max_tokens=8,
    )
    same(ask("Hello", instructions="Be brief.").output_text, chat.choices[0].message.content)
    turns = [{"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}, {"role": "user", "content": "Hello"}]
    same(ask(turns).output_text, chat.choices[0].message.content)


@case
def a_stream_says_the_same():
    want = ask(tokens=16)
    events, r = streamed(tokens=16)
    same(r.output_text, want.output_text)
    same(r.status, want.status)
    same(r.usage.total_tokens, want.usage.total_tokens)
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    same("".join(deltas), want.output_text)
    assert len(deltas) >= 10, f"{len(deltas)} deltas"
    done = [e for e in events if e.type == "response.output_text.done"]
    same([e.text for e in done], [want.output_text])


@case
def input_tokens():
    count = client.responses.input_tokens.count(model=LLM, input="Hello", instructions="Be brief.")
    same(count.object, "response.input_tokens")
    same(count.input_tokens, ask("Hello", instructions="Be brief.").usage.input_tokens)


@case
def its_output_is_input_again():
    first = ask("Say a word.")
    turns = [{"role": "user", "content": "Say a word."}] + [o.model_dump() for o in first.output]
    second = ask(turns + [{"role": "user", "content": "Another one."}])
    assert second.usage.input_tokens > first.usage.input_tokens, second.usage
    plain = [{"role": "assistant", "content": [{"type": "output_text", "text": first.output_text}]}]
    third = ask(turns[:1] + plain + [{"role": "user", "content": "Another one."}])
    same(third.usage.input_tokens, second.usage.input_tokens)


@case
def schema():
    r = ask("Is water wet?", tokens=32, text=ANSWER)
    same(r.status, "completed")
    same(list(json.loads(r.output_text)), ["yes"])
    _, r = streamed("Is water wet?", tokens=32, text=ANSWER)
    same(list(json.loads(r.output_text)), ["yes"])
    same(r.text.format.name, "answer")


@case
def calls_are_input():
    turns = [
        {"role": "user", "content": "The weather in Rome?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Ask."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain."},
    ]
    for choice in ("auto", "none"):
        assert ask(turns, tools=[WEATHER], tool_choice=choice).output_text.strip()


@case
def codex():
    """What Codex sends besides."""
    _, r = streamed(
        [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You may write files."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        ],
        instructions="You are a coding agent.",
        tools=[WEATHER, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"}],
        tool_choice="none",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="thread",
    )
    assert r.output_text.strip(), r


@case
def errors():
    for kind, wrong in {
        "previous_response_id": {"previous_response_id": "resp_1"},
        "tools": {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1"}]},
        "max_output_tokens": {"tokens": "many"},
    }.items():
        for stream in (False, True):
            try:
                ask(**wrong, stream=stream)
            except openai.BadRequestError as e:
                same(e.param, None if kind == "max_output_tokens" else kind)  # values of settings are the engine's to refuse
            else:
                raise AssertionError(f"{kind} was accepted")


if __name__ == "__main__":
    main()
