"""Message batches by anthropic's own helpers; the argument is the gateway's URL."""
import sys
import time

from anthropic import Anthropic, NotFoundError

client = Anthropic(base_url=sys.argv[1], api_key="none")
client.messages.create(model="coder", max_tokens=9, messages=[{"role": "user", "content": "hi"}])  # so that it is loaded


def start(models):
    return client.messages.batches.create(
        requests=[
            {
                "custom_id": f"r{i}",
                "params": {"model": m, "max_tokens": 9, "messages": [{"role": "user", "content": f"<<say {i}>>"}]},
            }
            for i, m in enumerate(models)
        ]
    )


def ended(batch):
    for _ in range(300):
        batch = client.messages.batches.retrieve(batch.id)
        if batch.processing_status == "ended":
            return batch
        time.sleep(0.1)
    raise AssertionError(batch)


batch = start(["nothing"] + ["coder"] * 4)
assert batch.processing_status == "in_progress" and batch.request_counts.processing == 5, batch
batch = ended(batch)
counts = batch.request_counts
assert (counts.succeeded, counts.errored, counts.processing) == (4, 1, 0), batch
results = {r.custom_id: r.result for r in client.messages.batches.results(batch.id)}
assert sorted(results) == [f"r{i}" for i in range(5)], results
assert results["r0"].type == "errored" and results["r0"].error.error.type == "not_found_error", results["r0"]
assert all(results[f"r{i}"].message.content[0].text for i in range(1, 5)), results

other = start(["vec"])  # is not loaded; whatever its outcome, it has one
client.messages.batches.cancel(other.id)
other = ended(other)
assert [r.result.type for r in client.messages.batches.results(other.id)] in (["canceled"], ["errored"]), other
assert [b.id for b in client.messages.batches.list(limit=1)] == [other.id, batch.id]
assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
try:
    client.messages.batches.retrieve(batch.id)
    raise AssertionError("the batch is still there")
except NotFoundError:
    pass
