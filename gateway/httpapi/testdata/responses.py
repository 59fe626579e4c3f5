"""The official openai client asks for responses of an engine whose answers a test has written: the last message says which.
Each is asked for whole, as events, and through the client's own state machine. Called with the base URL; prints ok."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=60)


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def whole(name):
    return client.responses.create(model="chat", input=name)


def events(name):
    list_ = list(client.responses.create(model="chat", input=name, stream=True))
    same([e.sequence_number for e in list_], list(range(len(list_))))
    return list_


def parsed(name):
    with client.responses.stream(model="chat", input=name) as stream:
        list_ = list(stream)
    return list_[-1].response


def outline(response):
    """What a response says, without ids."""
    out = [response.status]
    for item in response.output:
        if item.type == "reasoning":
            out.append([p.text for p in item.content])
        elif item.type == "function_call":
            out.append((item.call_id, item.name, item.arguments, item.status))
        else:
            out.append((item.role, [p.text for p in item.content], item.status))
    return out


CALL = [
    "completed",
    ["He wants the weather."],
    ("c1", "weather", '{"city":"Rome"}', "completed"),
    ("c2", "time", "{}", "completed"),
]
LENGTH = ["incomplete", ("assistant", ["a"], "incomplete")]

for name, want in {"call": CALL, "length": LENGTH}.items():
    r = whole(name)
    same(outline(r), want)
    same((r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens), (11, 22, 33))
    list_ = events(name)
    same(list_[0].type, "response.created")
    same(list_[0].response.output, [])
    same(outline(list_[-1].response), want)
    same(outline(parsed(name)), want)

same(whole("length").incomplete_details.reason, "max_output_tokens")
deltas = [e.delta for e in events("call") if e.type == "response.function_call_arguments.delta" and e.output_index == 1]
same(deltas, ['{"ci', 'ty":"Rome"}'])

for ask in (whole, events, parsed):
    try:
        ask("broken")
    except openai.APIError as e:
        assert e.message, repr(e)
    else:
        raise AssertionError("a broken answer passed for a whole one")
print("ok")
