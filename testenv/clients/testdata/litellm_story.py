"""litellm against ORIGIN (argument 1): chats by three of its providers, a tool, responses, embeddings and rerank."""
import json
import sys

import litellm

origin = sys.argv[1]
say = [{"role": "user", "content": "<<say good morning>>"}]
call = [{"role": "user", "content": '<<call write {"path": "a.txt"}>>'}]
tools = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}]

for model, base in [("openai/coder", origin + "/v1"), ("anthropic/coder", origin), ("ollama_chat/coder", origin)]:
    where = {"model": model, "api_base": base, "api_key": "none"}
    whole = litellm.completion(messages=say, **where)
    assert whole.choices[0].message.content == "good morning", (model, whole)
    parts = litellm.completion(messages=say, stream=True, **where)
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    assert text == "good morning", (model, text)
    called = litellm.completion(messages=call, tools=tools, **where).choices[0].message.tool_calls
    assert called[0].function.name == "write", (model, called)
    assert json.loads(called[0].function.arguments) == {"path": "a.txt"}, (model, called)

openai = {"api_base": origin + "/v1", "api_key": "none"}
response = litellm.responses(model="openai/coder", input="<<say good night>>", **openai)
assert response.output[0].content[0].text == "good night", response
assert litellm.embedding(model="openai/vec", input=["a"], **openai).data[0]["embedding"]
ranks = litellm.rerank(model="cohere/rank", query="a", documents=["a", "b"], api_base=origin + "/v2/rerank", api_key="none")
assert len(ranks.results) == 2, ranks
