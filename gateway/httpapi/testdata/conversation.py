"""The official openai client continues stored responses of an engine that repeats the conversation it was sent. Called with
the base URL and two API keys; prints ok."""

import json
import sys

import openai


def client(key):
    return openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=key, max_retries=0, timeout=60)


ann, bob = map(client, sys.argv[2:])


def same(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


def told(response):
    """What the engine was sent: role and content of each message."""
    return [(m["role"], m["content"]) for m in json.loads(response.output_text)]


def streamed(**kw):
    with ann.responses.stream(model="chat", **kw) as stream:
        events = list(stream)
    same(events[0].response.store, True)
    return events[-1].response


def missing(call, status=404):
    try:
        call()
    except openai.APIStatusError as e:
        same((e.status_code, e.code), (status, "response_not_found"))
    else:
        raise AssertionError("it was found")


one = ann.responses.create(model="chat", input="I am Ann.", instructions="Be kind.")
same(told(one), [("system", "Be kind."), ("user", "I am Ann.")])
same((one.store, one.previous_response_id), (True, None))
same(ann.responses.retrieve(one.id).to_dict(), one.to_dict())

two = streamed(input=[{"role": "user", "content": "Who am I?"}], previous_response_id=one.id)
same((two.store, two.previous_response_id), (True, one.id))
history = [("user", "I am Ann."), ("assistant", one.output_text), ("user", "Who am I?")]
same(told(two), history)
same(ann.responses.retrieve(two.id).output_text, two.output_text)

three = ann.responses.create(model="chat", input="And now?", previous_response_id=two.id, store=False)
same(told(three), [*history, ("assistant", two.output_text), ("user", "And now?")])
same(three.store, False)
missing(lambda: ann.responses.retrieve(three.id))

# The items that a response answers, whoever sent them; and references to what a model said.
items = ann.responses.input_items.list(two.id, order="asc").data
same([(i.type, i.role, i.content[0].type, i.content[0].text) for i in items],
     [("message", "user", "input_text", "I am Ann."), ("message", "assistant", "output_text", one.output_text), ("message", "user", "input_text", "Who am I?")])
same([i.id for i in ann.responses.input_items.list(two.id, limit=1)], [i.id for i in reversed(items)])
same(items[1].id, one.output[0].id)
missing(lambda: bob.responses.input_items.list(two.id))
ref = {"type": "item_reference", "id": one.output[0].id}
four = ann.responses.create(model="chat", input=[{"role": "user", "content": "I am Ann."}, ref, {"role": "user", "content": "Well?"}])
same(told(four), [*history[:2], ("user", "Well?")])
five = ann.responses.create(model="chat", input=[ref, {"id": four.output[0].id}, {"role": "user", "content": "Go on."}])
same(told(five), [history[1], ("assistant", four.output_text), ("user", "Go on.")])
for asker, wrong in (bob, ref), (ann, dict(ref, id=ref["id"] + "9")), (ann, dict(ref, id="msg_1")):
    missing(lambda: asker.responses.create(model="chat", input=[wrong, {"role": "user", "content": "hi"}]))

# Only the key that stored a response finds it, and only until it removes it.
missing(lambda: bob.responses.retrieve(one.id))
missing(lambda: bob.responses.delete(one.id))
missing(lambda: bob.responses.create(model="chat", input="hi", previous_response_id=one.id))
ann.responses.delete(one.id)
missing(lambda: ann.responses.delete(one.id))
missing(lambda: ann.responses.retrieve(one.id))
missing(lambda: ann.responses.create(model="chat", input="hi", previous_response_id=one.id))
same(ann.responses.retrieve(two.id).id, two.id)
missing(lambda: ann.responses.retrieve("resp_" + "A" * 400))
missing(lambda: ann.responses.retrieve("resp_:" + two.id))
print("ok")
