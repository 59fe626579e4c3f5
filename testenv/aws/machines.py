"""Machines that take their time, refuse what does not suit their state, and may be sold out.

moto starts and stops instances in no time, starts those that are stopping or terminated, lets a group grow past its
maximum, takes away its mixed instances policy with any other change, tells of no scaling activity, cannot launch from a template's second version if that has user data, and gives what
it launches from a template a disk beside those of the template.
"""
import copy
import json
import threading
import uuid
from datetime import datetime, timezone

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import AutoScalingBackend, FakeAutoScalingGroup
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.utils import parse_user_data

from refusals import WORDS

PENDING, RUNNING, TERMINATED, STOPPING, STOPPED = ("pending", 0), ("running", 16), ("terminated", 48), ("stopping", 64), ("stopped", 80)


class Capacity:
    """Whether there are machines to be had, and the launches that failed for want of them."""

    def __init__(self):
        self.some = True
        self.without = ""  # a zone that has none, before a group tries its others
        self.falls_back = False  # a start is accepted, and the instance is stopped again
        self.words = ""  # of failed launches, if another thing is wrong than capacity
        self.failed = {}  # by group, newest first

    def give(self, machines, zone="", words=""):
        self.some = machines in ("some", "late")
        self.falls_back = machines == "late"
        self.without, self.words = zone, words


CAPACITY = Capacity()


class Clock:
    """When machines have started or stopped: after real time, or once a test has let enough virtual time pass."""

    def __init__(self):
        self.virtual = False
        self.lock = threading.Lock()
        self.now = 0.0
        self.waiting = []  # (time, what happens then)

    def after(self, seconds, do):
        if not self.virtual:
            timer = threading.Timer(seconds, do)
            timer.daemon = True
            timer.start()
            return
        with self.lock:
            self.waiting.append((self.now + seconds, do))

    def advance(self, seconds):
        with self.lock:
            self.now += seconds
            due = sorted((w for w in self.waiting if w[0] <= self.now), key=lambda w: w[0])
            self.waiting = [w for w in self.waiting if w[0] > self.now]
        for _, do in due:
            do()


CLOCK = Clock()


def become(instance, state):
    instance._state.name, instance._state.code = state


def install(settle):
    """Patch moto. A machine is pending or stopping for settle seconds."""
    later(settle)
    starts()
    groups()
    templates()


def later(settle):
    start, stop = Instance.start, Instance.stop

    def through(method, passing, end):
        def change(self):
            previous = copy.copy(self._state)
            if self._state.name in (passing[0], end[0]):
                return previous
            changed = copy.copy(self)  # other calls read self meanwhile: none may see moto's state with no transition
            changed._state = copy.copy(self._state)
            method(changed)
            become(self, passing)
            self._reason, self.state_reason = changed._reason, changed.state_reason
            back = passing == PENDING and CAPACITY.falls_back
            CLOCK.after(settle, lambda: self._state.name == passing[0] and (fall_back(self) if back else become(self, end)))
            return previous

        return change

    Instance.start = through(start, PENDING, RUNNING)
    Instance.stop = through(stop, STOPPING, STOPPED)


def fall_back(instance):
    become(instance, STOPPED)
    instance._reason = "Server.InsufficientInstanceCapacity: " + WORDS["InsufficientInstanceCapacity"]


def starts():
    start, stop = EC2Backend.start_instances, EC2Backend.stop_instances

    def guarded(method, bad, verb, needs_machine):
        def call(self, instance_ids):
            for i in self.get_multi_instances_by_id(instance_ids):
                if i._state.name in bad:
                    raise EC2ClientError("IncorrectInstanceState", f"The instance '{i.id}' is not in a state from which it can be {verb}.")
                if needs_machine and not CAPACITY.some and i._state.name == STOPPED[0]:
                    raise EC2ClientError("InsufficientInstanceCapacity", WORDS["InsufficientInstanceCapacity"])
            return method(self, instance_ids)

        return call

    gone = (TERMINATED[0], "shutting-down")
    EC2Backend.start_instances = guarded(start, (*gone, STOPPING[0]), "started", True)
    EC2Backend.stop_instances = guarded(stop, (*gone, PENDING[0]), "stopped", False)


def groups():
    resize = AutoScalingBackend.set_desired_capacity

    def set_desired_capacity(self, group_name, desired_capacity):
        group = self.autoscaling_groups[group_name]
        if desired_capacity is not None and desired_capacity > group.max_size:
            raise ValidationError(f"New SetDesiredCapacity value {desired_capacity} is above max value {group.max_size} for the AutoScalingGroup.")
        if not CAPACITY.some and (desired_capacity or 0) > len(group.active_instances()):
            group.desired_capacity = desired_capacity
            for zone in group.availability_zones:
                CAPACITY.failed.setdefault(group_name, []).insert(0, failed_launch(group_name, zone))
            return
        if CAPACITY.without and (desired_capacity or 0) > len(group.active_instances()):
            group.desired_capacity = desired_capacity
            CAPACITY.failed.setdefault(group_name, []).insert(0, failed_launch(group_name, CAPACITY.without))
            CLOCK.after(1, lambda: resize(self, group_name, desired_capacity))
            return
        resize(self, group_name, desired_capacity)

    def describe_scaling_activities(self):
        return ActionResult({"Activities": CAPACITY.failed.get(self._get_param("AutoScalingGroupName"), [])})

    update = FakeAutoScalingGroup.update

    def update_what_is_given(self, **given):
        policy = self.mixed_instances_policy
        update(self, **given)
        if not any(given.get(k) for k in ("mixed_instances_policy", "launch_config_name", "launch_template")):
            self.mixed_instances_policy = policy

    FakeAutoScalingGroup.update = update_what_is_given
    AutoScalingBackend.set_desired_capacity = set_desired_capacity
    AutoScalingResponse.describe_scaling_activities = describe_scaling_activities


def failed_launch(group, zone):
    now = datetime.now(timezone.utc)
    words = (CAPACITY.words or WORDS["InsufficientInstanceCapacity"]) + " Launching EC2 instance failed."
    return {
        "ActivityId": str(uuid.uuid4()),
        "AutoScalingGroupName": group,
        "Description": "Launching a new EC2 instance.  Status Reason: " + words,
        "Cause": "an instance was started in response to a difference between desired and actual capacity",
        "StartTime": now,
        "EndTime": now,
        "StatusCode": "Failed",
        "StatusMessage": words,
        "Progress": 100,
        "Details": json.dumps({"Availability Zone": zone}),
    }


def templates():
    make = LaunchTemplateVersion.__init__

    def with_user_data(self, template, number, data, description):
        if isinstance(data.get("UserData"), str):  # of a first version it is decoded already
            data = {**data, "UserData": parse_user_data(data["UserData"])}
        make(self, template, number, data, description)

    LaunchTemplateVersion.__init__ = with_user_data
    default_disk = Instance.setup_defaults

    def disk(self):
        if not getattr(self, "template_disks", None):
            default_disk(self)

    Instance.setup_defaults = disk
