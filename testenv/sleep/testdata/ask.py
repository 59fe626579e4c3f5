"""The official openai client asks a model whose host sleeps, once in one piece and once as a stream. No retries: what it
gets it gets at the first try. Called with the gateway's base URL and the model; prints ok."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=120)
question = {"model": sys.argv[2], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def ask(**more):
    return client.chat.completions.create(**question, **more)


whole = ask()
assert whole.choices[0].message.content, whole
text = "".join(c.choices[0].delta.content or "" for c in ask(stream=True) if c.choices)
assert text, "the stream had no content"
print("ok")
