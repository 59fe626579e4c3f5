"""The story of a user: the official openai client against a running gateway with the default catalogue.

Called with the gateway's base URL. The cases run in order.
"""

import io
import json
import math
import sys
import time
import wave

import httpx2 as httpx
import openai

from cases import case, main, same

BASE = sys.argv[1]
V1 = BASE + "/v1"
client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=180)
http = httpx.Client(timeout=180)

LLM, TWIN = "gemma-3-270m", "gemma-3-270m-twin"
EMBED, RERANK = "minilm-l6-v2", "minilm-reranker"


def say(model, text="Once upon a time", tokens=8, **more):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=tokens, **more
    )


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def health():
    return http.get(V1 + "/health").raise_for_status().json()


def loaded(kind=None):
    return [m["model_name"] for m in health()["all_models_loaded"] if kind in (None, m["type"])]


def sound():
    """A second of silence as a WAV file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(16000)
        w.writeframes(bytes(32000))
    return out.getvalue()


@case
def chat():
    a = say(LLM)
    same(a.object, "chat.completion")
    same(a.model, LLM)
    same(a.choices[0].message.role, "assistant")
    same(a.choices[0].finish_reason, "length")
    same(a.usage.completion_tokens, 8)
    assert a.choices[0].message.content.strip(), a


@case
def chat_says_that_it_was_cold():
    client_error = http.post(V1 + "/unload", json={"model_name": LLM})
    assert client_error.status_code == 200, client_error.text
    raw = client.chat.completions.with_raw_response.create(
        model=LLM, messages=[{"role": "user", "content": "Hi"}], max_tokens=2
    )
    same(raw.headers["x-cold-start"], "1")
    same(raw.headers["x-model"], LLM)
    same(raw.headers["x-model-state"], "unloaded")
    assert int(raw.headers["x-load-ms"]) > 0, raw.headers
    raw = client.chat.completions.with_raw_response.create(
        model="gemma", messages=[{"role": "user", "content": "Hi"}], max_tokens=2
    )
    assert "x-cold-start" not in raw.headers, raw.headers
    same(raw.headers["x-model"], LLM)
    same(raw.parse().model, LLM)


@case
def streamed_chat():
    whole = say(LLM, tokens=16).choices[0].message.content
    arrivals, text, ids, finish, usage = [], "", set(), None, None
    for chunk in say(LLM, tokens=16, stream=True, stream_options={"include_usage": True}):
        arrivals.append(time.monotonic())
        ids.add(chunk.id)
        same(chunk.object, "chat.completion.chunk")
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    same(text, whole)
    same(len(ids), 1)
    same(finish, "length")
    same(usage.completion_tokens, 16)
    assert len(arrivals) >= 10, f"{len(arrivals)} chunks"
    assert len(set(arrivals)) > 5, "the chunks came in one piece"


@case
def a_json_object_is_one():
    a = say(LLM, tokens=16, response_format={"type": "json_object"}).choices[0].message.content
    assert a.lstrip().startswith("{"), a


@case
def streamed_bytes():
    body = {"model": LLM, "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
    with http.stream("POST", V1 + "/chat/completions", json=body) as r:
        same(r.status_code, 200)
        same(r.headers["content-type"], "text/event-stream; charset=utf-8")
        same(r.headers["cache-control"], "no-cache")
        assert "content-length" not in r.headers, r.headers
        events = [e for e in "".join(r.iter_text()).split("\n\n") if e]
    same(events[-1], "data: [DONE]")
    for e in events[:-1]:
        assert e.startswith("data: {"), e
        json.loads(e.removeprefix("data: "))


@case
def a_request_right_behind_a_stream():
    for _ in range(20):  # the engine may close its connection there
        with client.chat.completions.create(
            model=LLM, messages=[{"role": "user", "content": "Hi"}], max_tokens=1, stream=True
        ) as stream:
            assert list(stream)
        same(say(LLM, "Hi", tokens=1).usage.completion_tokens, 1)


@case
def completion():
    a = client.completions.create(model=LLM, prompt="The sea is", temperature=0, max_tokens=6)
    same(a.object, "text_completion")
    assert a.choices[0].text, a


@case
def completions_have_log_probabilities():
    asked = dict(model=LLM, prompt="The sea is", temperature=0, max_tokens=3)
    a = client.completions.create(**asked, logprobs=2).choices[0]
    p = a.logprobs
    same("".join(p.tokens), a.text)
    same(len(p.token_logprobs), 3)
    same(p.text_offset, [sum(map(len, p.tokens[:i])) for i in range(3)])
    for token, alternatives in zip(p.tokens, p.top_logprobs):
        same(len(alternatives), 2)
        assert max(alternatives, key=alternatives.get) == token, alternatives
    chunks = list(client.completions.create(**asked, logprobs=2, stream=True))
    same([t for c in chunks for t in (c.choices[0].logprobs.tokens if c.choices[0].logprobs else [])], p.tokens)
    for more in (dict(echo=True), dict(suffix=" and deep.")):
        try:
            client.completions.create(**asked, **more)
            raise AssertionError(more)
        except openai.BadRequestError as e:
            same(e.code, "unsupported_parameter")


@case
def embeddings():
    texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "The tax report is due in April."]
    cat, kitten, tax = (e.embedding for e in client.embeddings.create(model=EMBED, input=texts).data)
    same({len(v) for v in (cat, kitten, tax)}, {384})
    near, far = cosine(cat, kitten), cosine(cat, tax)
    assert near > 0.5 and far < 0.3 and near > far + 0.3, f"cat-kitten {near:.3f}, cat-tax {far:.3f}"


@case
def embeddings_and_rerank_of_other_dialects():
    texts = ["a cat on a mat", "the tax report"]
    plain = [e.embedding for e in client.embeddings.create(model=EMBED, input=texts, encoding_format="float").data]
    same(http.post(BASE + "/embed", json={"model": EMBED, "inputs": texts}).json(), plain)
    same(http.post(BASE + "/v2/embed", json={"model": EMBED, "texts": texts}).json()["embeddings"]["float"], plain)
    asked = {"model": RERANK, "query": "cat"}
    cohere = http.post(BASE + "/v2/rerank", json={**asked, "documents": texts, "top_n": 1}).json()["results"]
    voyage = http.post(V1 + "/rerank", json={**asked, "documents": texts, "top_k": 1, "truncation": True}).json()["data"]
    tei = http.post(BASE + "/rerank", json={**asked, "texts": texts, "raw_scores": True}).json()
    same(voyage, cohere)
    same([tei[0]["index"], tei[0]["score"]], [cohere[0]["index"], cohere[0]["relevance_score"]])
    same(len(tei), 2)


@case
def paths_of_the_engine():
    named = "?model=" + LLM
    tokens = http.post(BASE + "/tokenize" + named, json={"content": "The sea is"}).json()["tokens"]
    assert tokens and all(isinstance(t, int) for t in tokens), tokens
    same(http.post(BASE + "/detokenize" + named, json={"tokens": tokens}).json()["content"], "The sea is")
    prompt = http.post(BASE + "/apply-template", json={"model": LLM, "messages": [{"role": "user", "content": "hello"}]}).json()["prompt"]
    assert "hello" in prompt and prompt != "hello", prompt


@case
def embeddings_base64_and_float_agree():
    # The client asks for base64 by itself and decodes it.
    decoded = client.embeddings.create(model=EMBED, input="a cat on a mat").data[0].embedding
    plain = client.embeddings.create(model=EMBED, input="a cat on a mat", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(decoded, plain)) < 1e-5, "base64 and float differ"
    raw = http.post(V1 + "/embeddings", json={"model": EMBED, "input": "x", "encoding_format": "base64"}).json()
    assert isinstance(raw["data"][0]["embedding"], str), raw["data"][0]


@case
def embeddings_of_a_hundred():
    texts = [f"Item {i}" for i in range(100)]
    batch = client.embeddings.create(model=EMBED, input=texts)
    same([e.index for e in batch.data], list(range(100)))
    assert batch.usage.prompt_tokens >= 300, batch.usage
    for i in (0, 37, 99):
        alone = client.embeddings.create(model=EMBED, input=texts[i]).data[0].embedding
        near = [cosine(alone, e.embedding) for e in batch.data]
        same(near.index(max(near)), i)
        assert near[i] > 0.999, near[i]


@case
def rerank():
    body = {"model": RERANK, "query": "cat", "documents": ["a cat", "a tax report", {"text": "the sea"}], "return_documents": True}
    a = http.post(V1 + "/rerank", json=body).raise_for_status().json()
    same(sorted(r["index"] for r in a["results"]), [0, 1, 2])
    scores = [r["relevance_score"] for r in a["results"]]
    same(scores, sorted(scores, reverse=True))
    same({r["index"]: r["document"]["text"] for r in a["results"]}, {0: "a cat", 1: "a tax report", 2: "the sea"})
    same(a["model"], RERANK)
    again = http.post(BASE + "/v2/rerank", json=body).raise_for_status().json()
    same([r["index"] for r in again["results"]], [r["index"] for r in a["results"]])
    top = http.post(BASE + "/rerank", json=body | {"top_n": 1}).raise_for_status().json()
    same([r["index"] for r in top["results"]], [a["results"][0]["index"]])


@case
def two_llms_take_turns():
    first = say(LLM)
    same(loaded("llm"), [LLM])
    pid = {m["model_name"]: m["pid"] for m in health()["all_models_loaded"]}[LLM]
    second = say(TWIN)
    same(loaded("llm"), [TWIN])
    same(second.choices[0].message.content, first.choices[0].message.content)
    same(second.model, TWIN)
    raw = client.chat.completions.with_raw_response.create(
        model=LLM, messages=[{"role": "user", "content": "Once upon a time"}], temperature=0, max_tokens=8
    )
    same(raw.headers["x-evicted"], TWIN)
    same(loaded("llm"), [LLM])
    same(raw.parse().choices[0].message.content, first.choices[0].message.content)
    now = {m["model_name"]: m["pid"] for m in health()["all_models_loaded"]}[LLM]
    assert now != pid, "the same process after it was evicted"


@case
def five_types_together():
    say(LLM, tokens=1)
    client.embeddings.create(model=EMBED, input="x")
    http.post(V1 + "/rerank", json={"model": RERANK, "query": "q", "documents": ["d"]}).raise_for_status()
    heard = client.audio.transcriptions.create(model="stub-audio", file=("a.wav", sound(), "audio/wav"))
    assert heard.text, heard
    drawn = client.images.generate(model="stub-image", prompt="a cat", size="64x64", response_format="b64_json")
    assert drawn.data[0].b64_json, drawn
    same(sorted(loaded()), sorted([LLM, EMBED, RERANK, "stub-audio", "stub-image"]))
    h = health()
    same(h["status"], "ok")
    same(h["model_loaded"], "stub-image")
    for m in h["all_models_loaded"]:
        assert m["pid"] > 0 and m["backend_url"].endswith("/v1") and m["device"] == "cpu", m
    used = [m["last_use"] for m in h["all_models_loaded"]]
    same(used, sorted(used, reverse=True))


@case
def models_are_listed():
    ids = [m.id for m in client.models.list()]
    for want in (LLM, TWIN, EMBED, RERANK, "stub-audio", "stub-image"):
        assert want in ids, ids
    same(client.models.retrieve(LLM).id, LLM)
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as e:
        same(e.code, "model_not_found")
    else:
        raise AssertionError("no error")


@case
def unknown_model():
    try:
        say("no-such-model")
    except openai.NotFoundError as e:
        same(e.code, "model_not_found")
        same(e.type, "invalid_request_error")
        assert "no-such-model" in e.message, e.message
    else:
        raise AssertionError("no error")


@case
def wrong_type():
    before = loaded()
    for call in (
        lambda: client.embeddings.create(model=LLM, input="x"),
        lambda: say(EMBED),
        lambda: say("stub-image", stream=True),
    ):
        try:
            call()
        except openai.BadRequestError as e:
            same(e.code, "model_type_mismatch")
        else:
            raise AssertionError("no error")
    same(loaded(), before)


@case
def mistakes_of_the_request():
    for body, code in (
        ({"messages": []}, "missing_required_parameter"),
        ({"model": LLM}, "missing_required_parameter"),
        ({"model": LLM, "messages": "hello"}, "invalid_type"),
        ({"model": 7, "messages": []}, "invalid_type"),
    ):
        r = http.post(V1 + "/chat/completions", json=body)
        same((r.status_code, r.json()["error"]["code"]), (400, code))
    r = http.post(V1 + "/chat/completions", content=b"{nonsense")
    same((r.status_code, r.json()["error"]["code"]), (400, "invalid_json"))
    r = http.get(V1 + "/chat/completions")
    same((r.status_code, r.headers["allow"].split(", ")[-1] != ""), (405, True))
    r = http.post(V1 + "/no/such/route", json={})
    same((r.status_code, r.json()["error"]["code"]), (404, "unknown_url"))


@case
def context_overflow_is_the_requests_fault():
    try:
        say(LLM, text="word " * 6000)
    except openai.BadRequestError as e:
        same(e.code, "context_length_exceeded")
    else:
        raise AssertionError("no error")


main()
