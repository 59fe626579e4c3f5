"""Lifecycle hooks of Auto Scaling groups: a launched machine waits until it is said to be ready.

moto keeps hooks beside its groups without effect, forgets those that a group is made with, and has no
CompleteLifecycleAction. Here a hook on launching holds a machine in Pending:Wait until that is called; hooks on terminating
hold nothing, and no hook times out.
"""
from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import FakeAutoScalingGroup
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import EmptyResult

LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
WAITING, IN_SERVICE = "Pending:Wait", "InService"


def install():
    """Patch moto."""
    first_hooks()
    launches()
    AutoScalingResponse.complete_lifecycle_action = complete


def first_hooks():
    create = AutoScalingResponse.create_auto_scaling_group

    def create_with_hooks(self):
        asked = self._get_params()
        for hook in asked.get("LifecycleHookSpecificationList", []):  # first, as the group launches at once
            self.autoscaling_backend.create_lifecycle_hook(
                name=hook["LifecycleHookName"],
                as_name=asked["AutoScalingGroupName"],
                transition=hook["LifecycleTransition"],
                timeout=int(hook.get("HeartbeatTimeout", 3600)),
                result=hook.get("DefaultResult"),
            )
        return create(self)

    AutoScalingResponse.create_auto_scaling_group = create_with_hooks


def launches():
    launch = FakeAutoScalingGroup.replace_autoscaling_group_instances

    def launch_into_hooks(self, count_needed, propagated_tags):
        before = len(self.instance_states)
        launch(self, count_needed, propagated_tags)
        if any(h.lifecycle_transition == LAUNCHING for h in self.autoscaling_backend.describe_lifecycle_hooks(self.name)):
            for state in self.instance_states[before:]:
                state.lifecycle_state = WAITING

    def active(self):
        return [s for s in self.instance_states if s.lifecycle_state in (IN_SERVICE, WAITING)]

    FakeAutoScalingGroup.replace_autoscaling_group_instances = launch_into_hooks
    FakeAutoScalingGroup.active_instances = active


def complete(self):
    """Answer CompleteLifecycleAction."""
    backend = self.autoscaling_backend
    group, hook, instance = (self._get_param(p) for p in ("AutoScalingGroupName", "LifecycleHookName", "InstanceId"))
    states = backend.autoscaling_groups[group].instance_states if group in backend.autoscaling_groups else []
    waiting = [s for s in states if s.instance_id == instance and s.lifecycle_state == WAITING]
    if not waiting or not backend.describe_lifecycle_hooks(group, [hook]):
        raise ValidationError(f"No active Lifecycle Action found with instance ID {instance}")
    if self._get_param("LifecycleActionResult") == "CONTINUE":
        waiting[0].lifecycle_state = IN_SERVICE
    else:
        backend.ec2_backend.terminate_instances([instance])  # the group launches another one
    return EmptyResult()
