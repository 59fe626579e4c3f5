"""A batch by openai-python's own helpers; the argument is the gateway's URL."""
import io
import json
import sys
import time

from openai import NotFoundError, OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
client.chat.completions.create(model="coder", messages=[{"role": "user", "content": "hi"}])  # so that it is loaded
lines = [
    {
        "custom_id": f"line-{i}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "coder" if i else "nothing", "messages": [{"role": "user", "content": f"<<say {i}>>"}]},
    }
    for i in range(5)
]
text = "\n".join(json.dumps(line) for line in lines)
file = client.files.create(file=("lines.jsonl", io.BytesIO(text.encode())), purpose="batch")
assert file.bytes == len(text) and file.purpose == "batch", file
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
)
for _ in range(300):
    batch = client.batches.retrieve(batch.id)
    if batch.status == "completed":
        break
    time.sleep(0.1)
assert batch.status == "completed" and batch.metadata == {"a": "b"}, batch
assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (5, 4, 1), batch
outcomes = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
assert [o["custom_id"] for o in outcomes] == [f"line-{i}" for i in range(1, 5)], outcomes
assert all(o["response"]["body"]["choices"][0]["message"]["content"] for o in outcomes), outcomes
failed = json.loads(client.files.content(batch.error_file_id).text)
assert failed["response"]["status_code"] == 404, failed
assert batch.id in [b.id for b in client.batches.list()]
assert {f.id for f in client.files.list()} >= {file.id, batch.output_file_id, batch.error_file_id}
assert client.files.delete(file.id).deleted
try:
    client.files.retrieve(file.id)
    raise AssertionError("the file is still there")
except NotFoundError:
    pass
