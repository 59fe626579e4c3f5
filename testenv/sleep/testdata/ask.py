"""The official openai client asks a model whose host sleeps, once in one piece and once as a stream. No retries: what it
gets it gets at the first try, unless the state store is away, as on a machine that has too much to do. Called with the
gateway's base URL and the model; prints ok."""

import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=120)
question = {"model": sys.argv[2], "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def ask(**more):
    for last in [False] * 20 + [True]:
        try:
            return client.chat.completions.create(**question, **more)
        except openai.InternalServerError as err:
            if err.code != "state_unavailable" or last:
                raise
        time.sleep(1)


whole = ask()
assert whole.choices[0].message.content, whole
text = "".join(c.choices[0].delta.content or "" for c in ask(stream=True) if c.choices)
assert text, "the stream had no content"
print("ok")
