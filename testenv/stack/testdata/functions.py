"""Print as JSON what an AWS has of a deployment's functions: functions.py URL PREFIX.

By a function's name without the prefix: its settings, its time in seconds, the digest of its code, the rules that call it
with the event that each sends.
"""
import json
import sys

import boto3

URL, PREFIX = sys.argv[1], sys.argv[2]


def client(service):
    return boto3.client(service, endpoint_url=URL, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


def event(rule, target):
    """What EventBridge sends: the target's own input, or the event of a schedule."""
    return target.get("Input") or json.dumps({
        "version": "0",
        "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": rule["Arn"].split(":")[4],
        "time": "2026-01-01T00:00:00Z",
        "region": "us-east-1",
        "resources": [rule["Arn"]],
        "detail": {},
    })


events, functions = client("events"), {}
for f in client("lambda").list_functions()["Functions"]:
    if f["FunctionName"].startswith(PREFIX):
        functions[f["FunctionArn"]] = {
            "name": f["FunctionName"].removeprefix(PREFIX + "-"),
            "settings": f.get("Environment", {}).get("Variables", {}),
            "seconds": f["Timeout"],
            "digest": f["CodeSha256"],
            "events": {},
        }
for rule in events.list_rules()["Rules"]:
    for target in events.list_targets_by_rule(Rule=rule["Name"])["Targets"]:
        if target["Arn"] in functions and rule["State"] == "ENABLED":
            functions[target["Arn"]]["events"][rule["ScheduleExpression"]] = event(rule, target)
print(json.dumps({f.pop("name"): f for f in functions.values()}))
