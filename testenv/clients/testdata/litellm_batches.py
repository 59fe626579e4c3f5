"""A batch by LiteLLM's helpers, and one that is cancelled; the argument is the gateway's URL."""
import json
import sys
import time

import litellm

openai = {"custom_llm_provider": "openai", "api_base": sys.argv[1] + "/v1", "api_key": "none"}
say = [{"role": "user", "content": "<<say good morning>>"}]
litellm.completion(model="coder", messages=say, **openai)  # so that it is loaded
lines = [
    {
        "custom_id": f"line-{i}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": say},
    }
    for i, model in enumerate(["nothing", "coder", "coder"])
]
text = "\n".join(json.dumps(line) for line in lines).encode()
file = litellm.create_file(file=("lines.jsonl", text), purpose="batch", **openai)
assert file.bytes == len(text) and litellm.file_retrieve(file.id, **openai).filename == "lines.jsonl", file
order = {"completion_window": "24h", "endpoint": "/v1/chat/completions"}
batch = litellm.create_batch(input_file_id=file.id, metadata={"a": "b"}, **order, **openai)
for _ in range(300):
    batch = litellm.retrieve_batch(batch.id, **openai)
    if batch.status == "completed":
        break
    time.sleep(0.1)
assert batch.status == "completed" and batch.metadata == {"a": "b"}, batch
assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 2, 1), batch
outcomes = [json.loads(line) for line in litellm.file_content(batch.output_file_id, **openai).text.splitlines()]
assert [o["custom_id"] for o in outcomes] == ["line-1", "line-2"], outcomes
assert all(o["response"]["body"]["choices"][0]["message"]["content"] == "good morning" for o in outcomes), outcomes
failed = json.loads(litellm.file_content(batch.error_file_id, **openai).text)
assert failed["response"]["status_code"] == 404, failed
many = "\n".join(json.dumps(lines[1] | {"custom_id": f"line-{i}"}) for i in range(30_000)).encode()
long = litellm.create_file(file=("many.jsonl", many), purpose="batch", **openai)
other = litellm.create_batch(input_file_id=long.id, **order, **openai)
litellm.cancel_batch(other.id, **openai)
for _ in range(300):
    other = litellm.retrieve_batch(other.id, **openai)
    if other.status == "cancelled":
        break
    time.sleep(0.1)
assert other.status == "cancelled" and other.request_counts.completed < 30_000, other
assert {b.id for b in litellm.list_batches(**openai).data} >= {batch.id, other.id}
assert file.id in {f.id for f in litellm.file_list(**openai).data}
assert litellm.file_delete(file.id, **openai).deleted
