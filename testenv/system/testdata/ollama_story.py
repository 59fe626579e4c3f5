"""The official ollama client against a running gateway with the default catalogue.

Called with the gateway's base URL. The cases run in order.
"""

import math
import sys

import ollama

from cases import case, main, same

client = ollama.Client(host=sys.argv[1], timeout=180)
LLM, EMBED = "gemma-3-270m", "minilm-l6-v2"
SHORT = {"temperature": 0, "num_predict": 8, "num_ctx": 2048}
HELLO = [{"role": "user", "content": "Once upon a time"}]


def running():
    return [m.model for m in client.ps().models]


@case
def chat():
    a = client.chat(LLM, HELLO, options=SHORT)
    same((a.model, a.done, a.done_reason, a.message.role), (LLM, True, "length", "assistant"))
    assert a.message.content.strip(), a
    same(a.eval_count, 8)
    assert a.prompt_eval_count > 4 and a.eval_duration > 0 and a.prompt_eval_duration > 0, a
    assert a.total_duration >= a.load_duration > 0, a


@case
def chat_streams_and_says_the_same():
    whole = client.chat(LLM + ":latest", HELLO, options=SHORT)
    parts = list(client.chat(LLM + ":latest", HELLO, options=SHORT, stream=True))
    same([p.done for p in parts], [False] * (len(parts) - 1) + [True])
    assert len(parts) > 4, parts
    same("".join(p.message.content for p in parts), whole.message.content)
    last = parts[-1]
    same((last.model, last.done_reason, last.eval_count), (LLM + ":latest", "length", 8))
    same(last.prompt_eval_count, whole.prompt_eval_count)


@case
def generate():
    a = client.generate(LLM, "Once upon a time", options=SHORT)
    same((a.done, a.done_reason, a.eval_count), (True, "length", 8))
    assert a.response.strip(), a
    raw = client.generate(LLM, "Once upon a time", raw=True, options=SHORT)
    parts = list(client.generate(LLM, "Once upon a time", raw=True, options=SHORT, stream=True))
    same("".join(p.response for p in parts), raw.response)


@case
def format_is_a_schema():
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
    a = client.chat(LLM, HELLO, format=schema, options={"temperature": 0, "num_predict": 40})
    assert a.message.content.lstrip().startswith("{"), a


@case
def format_is_any_object():
    a = client.chat(LLM, HELLO, format="json", options={"temperature": 0, "num_predict": 16})
    assert a.message.content.lstrip().startswith("{"), a


@case
def context_size_is_that_of_the_load():
    client.generate(LLM, "", keep_alive=0)
    same(LLM + ":latest" in running(), False)
    same(client.chat(LLM, HELLO, options=SHORT).done, True)
    same([m.context_length for m in client.ps().models if m.model == LLM + ":latest"], [2048])


@case
def empty_loads_and_zero_unloads():
    a = client.generate(LLM, "", keep_alive=0)
    same((a.done, a.done_reason, a.response), (True, "unload", ""))
    same(LLM + ":latest" in running(), False)
    a = client.chat(LLM, [], keep_alive="10m")
    same((a.done, a.done_reason), (True, "load"))
    same(LLM + ":latest" in running(), True)


@case
def embeddings():
    texts = ["a cat on a mat", "a kitten on a rug"]
    a = client.embed(EMBED, texts)
    same((len(a.embeddings), len(a.embeddings[0])), (2, 384))
    assert a.prompt_eval_count > 8, a
    one = client.embeddings(EMBED, texts[0]).embedding
    dot = sum(x * y for x, y in zip(one, a.embeddings[0]))
    length = math.sqrt(sum(x * x for x in one) * sum(y * y for y in a.embeddings[0]))
    assert dot / length > 0.9999, dot / length
    same(list(client.embed(EMBED, "").embeddings), [])


@case
def listing():
    names = {m.model: m for m in client.list().models}
    m = names[LLM + ":latest"]
    assert m.size > 1e8 and len(m.digest) == 64 and m.modified_at, m
    same((m.details.format, m.details.quantization_level), ("gguf", "Q4_K_M"))
    same(client.show(EMBED).capabilities, ["embedding"])
    assert "completion" in client.show(LLM).capabilities


@case
def pull_tells_how_far_it_is():
    same([p.status for p in client.pull(LLM, stream=True)][-1], "success")
    same(client.pull(LLM).status, "success")


@case
def errors():
    for call, status in (
        (lambda: client.chat("no-such-model", HELLO), 404),
        (lambda: list(client.chat("no-such-model", HELLO, stream=True)), 404),
        (lambda: client.chat(EMBED, HELLO), 400),
        (lambda: client.show("no-such-model"), 404),
        (lambda: client.delete("no-such-model"), 401),  # it needs the admin key
        (lambda: client.generate(LLM, "a", suffix="b"), 400),
    ):
        try:
            call()
        except ollama.ResponseError as e:
            same((e.status_code, bool(e.error)), (status, True))
        else:
            raise AssertionError("no error")


main()
