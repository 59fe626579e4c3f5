"""Errors of the services, in the words and the form that they send them."""
import threading

from werkzeug.wrappers import Response

# Words of real refusals. A code that is not here is sent with its own name for words.
WORDS = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested "
    "(us-east-1a). Our system will be working on provisioning additional capacity.",
    "RequestLimitExceeded": "Request limit exceeded.",
    "Throttling": "Rate exceeded",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that "
    "the specified instance type belongs to.",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "ScalingActivityInProgress": "Scaling activity is in progress.",
}

# Actions of Auto Scaling; all others are taken for EC2's.
AUTOSCALING = {
    "CompleteLifecycleAction",
    "DescribeAutoScalingGroups",
    "DescribeScalingActivities",
    "SetDesiredCapacity",
}

EC2_FORM = """<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>{words}</Message></Error></Errors><RequestID>emulated</RequestID></Response>"""
AUTOSCALING_FORM = """<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">
<Error><Type>Sender</Type><Code>{code}</Code><Message>{words}</Message></Error><RequestId>emulated</RequestId></ErrorResponse>"""
SERVER_FAULTS = {"RequestLimitExceeded": 503, "InsufficientInstanceCapacity": 500}


class Refusals:
    """What is to be refused, by action, first come first served."""

    def __init__(self):
        self.lock = threading.Lock()
        self.waiting = {}

    def add(self, action, code, times):
        with self.lock:
            self.waiting.setdefault(action, []).extend([code] * times)

    def take(self, action):
        """The answer to one call of an action, None for one that is not refused."""
        with self.lock:
            if not self.waiting.get(action):
                return None
            code = self.waiting[action].pop(0)
        form = AUTOSCALING_FORM if action in AUTOSCALING else EC2_FORM
        text = form.format(code=code, words=WORDS.get(code, code))
        return Response(text, SERVER_FAULTS.get(code, 400), content_type="text/xml")
