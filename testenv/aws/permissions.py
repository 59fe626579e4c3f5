"""What IAM roles may do: their policies, held against each call that is made with a role's credentials.

moto knows neither the resources nor the conditions of policies in full. Here a call is allowed if a statement of the role's
policies names its action and its resource and all conditions hold, no statement denies it, and the permissions boundary, if
there is one, allows it too. What a customer's key of KMS encrypts takes a right to the key besides. What a policy says in a way that is not known here fails the call loudly. A call with the key
"test" is an administrator's: that of tests and of Terraform.
"""
import fnmatch
import json
import sys
import threading
from urllib.parse import parse_qs, unquote

from moto.autoscaling.models import autoscaling_backends
from moto.awslambda.models import lambda_backends
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import Instance
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.secretsmanager.models import secretsmanager_backends
from moto.sts.models import sts_backends
from werkzeug.wrappers import Response

from refusals import AUTOSCALING_FORM, EC2_FORM

ACCOUNT, PARTITION = "123456789012", "aws"
ADMINISTRATOR = "test"
HOUR = 3600
S3_FORM = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{words}</Message><RequestId>emulated</RequestId></Error>'


def install():
    """Patch moto, which forgets the instance profile of a launch template."""
    init = Instance.__init__

    def with_profile(self, ec2_backend, *args, **kwargs):
        init(self, ec2_backend, *args, **kwargs)
        template = kwargs.get("launch_template")
        data = ec2_backend._get_template_from_args(template).data if template else {}
        self.template_profile, self.template_disks = data.get("IamInstanceProfile"), data.get("BlockDeviceMappings")

    Instance.__init__ = with_profile


class Call:
    """One call of an API: its action, the resources that it is about, and what conditions may ask of it, by resource."""

    def __init__(self, request, body, service, region):
        self.service, self.region = service, region
        self.resources = [("*", {})]
        self.keys = []  # in the same form, with the action first
        if service == "s3":
            self.s3(request)
            return
        target = request.headers.get("X-Amz-Target")
        if target:
            name, args = target.rpartition(".")[2], json.loads(body or b"{}")
        else:
            args = {k: v[0] for k, v in parse_qs(body.decode("utf-8", "replace")).items()}
            name = args.get("Action", "?")  # of a service that no role here calls
        self.action = f"{service}:{name}"
        if service == "ec2":
            ids = [v for k, v in sorted(args.items()) if k.startswith("InstanceId.")]
            if ids and not name.startswith("Describe"):
                self.resources = [self.instance(i) for i in ids]
            if name == "StartInstances":
                self.disks(ids)
        elif service == "autoscaling" and not name.startswith("Describe"):
            self.resources = [self.group(args)]
        elif service == "secretsmanager" and "SecretId" in args:
            self.resources = [self.secret(args["SecretId"])]
            if name == "GetSecretValue":
                self.decrypted(self.found_secret(args["SecretId"]))

    def s3(self, request):
        bucket, _, key = unquote(request.path).lstrip("/").partition("/")
        verb = {"GET": "Get", "HEAD": "Get", "PUT": "Put", "POST": "Put", "DELETE": "Delete"}.get(request.method, request.method)
        arn = f"arn:{PARTITION}:s3:::{bucket}"
        if key:
            version = "Version" if "versionId" in request.args else ""
            self.action, self.resources = f"s3:{verb}Object{version}", [(f"{arn}/{key}", {})]
            held = s3_backends[ACCOUNT][PARTITION].buckets.get(bucket)
            if verb == "Get" and request.method != "HEAD":
                self.decrypted(held.keys.get(key) if held else None)
        elif verb == "Get" and (request.method == "HEAD" or "list-type" in request.args or not request.args.keys() - {"prefix", "delimiter"}):
            asked = {"s3:prefix": request.args["prefix"]} if "prefix" in request.args else {}
            self.action, self.resources = "s3:ListBucket", [(arn, asked)]
        else:
            self.action, self.resources = f"s3:{verb}Bucket?", [(arn, {})]

    def arn(self, rest):
        return f"arn:{PARTITION}:{self.service}:{self.region}:{ACCOUNT}:{rest}"

    def instance(self, name):
        found = [i for r in ec2_backends[ACCOUNT][self.region].reservations.values() for i in r.instances if i.id == name]
        return self.arn(f"instance/{name}"), tags([(t["key"], t["value"]) for i in found for t in i.get_tags()])

    def group(self, args):
        groups = autoscaling_backends[ACCOUNT][self.region].autoscaling_groups
        name = args.get("AutoScalingGroupName")
        if not name:  # the group of a member
            name = next((g.name for g in groups.values() for s in g.instance_states if s.instance_id == args.get("InstanceId")), "?")
        listed = groups[name].tags if name in groups else []
        own = tags([(t.get("Key") or t["key"], t.get("Value") or t.get("value")) for t in listed])
        return self.arn(f"autoScalingGroup:0:autoScalingGroupName/{name}"), own | {k.replace("aws:", "autoscaling:"): v for k, v in own.items()}

    def secret(self, name):
        found = self.found_secret(name)
        return found.arn if found else self.arn(f"secret:{name}"), {}

    def found_secret(self, name):
        return next((s for s in secretsmanager_backends[ACCOUNT][self.region].secrets.values() if name in (s.name, s.arn)), None)

    def decrypted(self, thing):
        """A secret or an object is read with the caller's right to the key."""
        key = getattr(thing, "kms_key_id", None) or ""
        if key.startswith("arn:"):  # not of AWS's own, which everybody in the account may use
            self.keys.append(("kms:Decrypt", key, {}))

    def disks(self, instances):
        """EC2 gets a grant on the key of each disk that it attaches, by the caller's right."""
        backend = ec2_backends[ACCOUNT][self.region]
        for disk in backend.volumes.values():
            if disk.kms_key_id not in (None, backend.default_kms_key_id) and disk.attachment and disk.attachment.instance.id in instances:
                self.keys.append(("kms:CreateGrant", disk.kms_key_id, {"kms:GrantIsForAWSResource": "true"}))


def tags(pairs):
    return {f"aws:ResourceTag/{k}": v for k, v in pairs}


def listed(value):
    return value if isinstance(value, list) else [value]


def like(value, pattern):
    """* and ? of a policy; all else is as it is."""
    return fnmatch.fnmatchcase(value, pattern.replace("[", "[[]"))


def holds(operator, key, wanted, context):
    """Whether one condition holds. A key that the call has not fulfils none but Null."""
    found = {k.lower(): v for k, v in context.items()}.get(key.lower())
    if operator == "Null":
        return [str(found is None).lower()] == [str(w).lower() for w in wanted]
    tests = {"StringEquals": lambda w: found == w, "StringLike": lambda w: like(found, w), "Bool": lambda w: found.lower() == str(w).lower()}
    if operator not in tests:
        raise NotImplementedError(f"condition {operator}")
    return found is not None and any(tests[operator](w) for w in wanted)


def applies(statement, action, resource, context):
    unknown = statement.keys() - {"Sid", "Effect", "Action", "Resource", "Condition"}
    if unknown or "${" in json.dumps(statement):
        raise NotImplementedError(f"statement {statement}")
    return (
        any(like(action.lower(), a.lower()) for a in listed(statement["Action"]))
        and any(like(resource, r) for r in listed(statement["Resource"]))
        and all(holds(o, k, listed(w), context) for o, keys in statement.get("Condition", {}).items() for k, w in keys.items())
    )


def statements(document):
    return listed(json.loads(document if isinstance(document, str) else json.dumps(document))["Statement"])


class Permissions:
    """The credentials that instances and functions have, and the use that was made of each statement."""

    def __init__(self):
        self.lock = threading.Lock()
        self.used = set()  # (role, statement, action) of calls that no other statement allowed

    def credentials(self, instance=None, function=None):
        """Those that the metadata service of an instance tells, or the environment of a function, as their form is there."""
        region = "us-east-1"
        if instance:
            role, service = self.instance_role(instance, region), "ec2.amazonaws.com"
        else:
            role, service = iam().get_role_by_arn(lambda_backends[ACCOUNT][region].get_function(function).role), "lambda.amazonaws.com"
        trusted = [s["Principal"].get("Service") for s in statements(role.assume_role_policy_document)]
        if service not in trusted:
            raise LookupError(f"role {role.name} trusts {trusted}, not {service}")
        made = sts_backends[ACCOUNT][PARTITION].assume_role(region, instance or function, role.arn, "", HOUR, "")
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": made.access_key_id,
            "SecretAccessKey": made.secret_access_key,
            "Token": made.session_token,
            "LastUpdated": "2026-01-01T00:00:00Z",
            "Expiration": "2100-01-01T00:00:00Z",
        }

    def instance_role(self, name, region):
        ec2 = ec2_backends[ACCOUNT][region]
        association = ec2.iam_instance_profile_associations.get(name)
        if association:
            profile = association.iam_instance_profile
        else:
            profile = iam().get_instance_profile(ec2.get_instance(name).template_profile["Name"])
        (role,) = profile.roles
        return role

    def check(self, request, body):
        """The refusal of a call, None for one that is allowed, and the role that made it, None for an administrator."""
        scope = request.headers.get("Authorization", "").partition("Credential=")[2].split(",")[0].split("/")
        if scope[0] == ADMINISTRATOR:
            return None, None
        region, service = (scope + [""] * 4)[2:4]
        role = self.caller(scope[0], request.headers.get("X-Amz-Security-Token"))
        if role is None:
            return refusal(service, "InvalidClientTokenId", "The security token included in the request is invalid."), None
        call = Call(request, body, service, region)
        for action, resource, context in [(call.action, *r) for r in call.resources] + call.keys:
            if not self.allowed(role, action, resource, context):
                words = f"{role.arn} is not authorized to perform: {action} on resource: {resource}"
                code = {"ec2": "UnauthorizedOperation", "secretsmanager": "AccessDeniedException"}.get(service, "AccessDenied")
                print("permissions:", words, file=sys.stderr, flush=True)
                return refusal(service, code, words), role
        return None, role

    def caller(self, key, token):
        for made in sts_backends[ACCOUNT][PARTITION].assumed_roles:
            if made.access_key_id == key and made.session_token == token:
                return iam().get_role_by_arn(made.role_arn)
        return None

    def allowed(self, role, action, resource, context, record=True):
        own = [s for d in (*role.policies.values(), *map(document, role.managed_policies.values())) for s in statements(d)]
        by = [s for s in own if applies(s, action, resource, context)]
        if role.permissions_boundary_arn:
            bound = statements(document(iam().get_policy(role.permissions_boundary_arn)))
            by_bound = [s for s in bound if applies(s, action, resource, context)]
            if not by_bound or any(s["Effect"] == "Deny" for s in by_bound):
                return False
        if not by or any(s["Effect"] == "Deny" for s in by):
            return False
        if record and len(by) == 1:
            with self.lock:
                self.used.add((role.name, by[0].get("Sid", ""), action))
        return True

    def hides_absence(self, role, request):
        """Whether S3 says "forbidden" of an object that is not there: it does to who may not list the bucket."""
        if "/s3/" not in request.headers["Authorization"]:
            return False
        bucket = request.path.lstrip("/").split("/")[0]
        return not self.allowed(role, "s3:ListBucket", f"arn:{PARTITION}:s3:::{bucket}", {}, record=False)


def iam():
    return iam_backends[ACCOUNT][PARTITION]


def document(policy):
    return next(v.document for v in policy.versions if v.is_default)


def refusal(service, code, words):
    if service == "ec2":
        return Response(EC2_FORM.format(code=code, words=words), 403, content_type="text/xml")
    if service == "s3":
        return Response(S3_FORM.format(code=code, words=words), 403, content_type="application/xml")
    if service == "secretsmanager":
        return Response(json.dumps({"__type": code, "Message": words}), 400, content_type="application/x-amz-json-1.1")
    return Response(AUTOSCALING_FORM.format(code=code, words=words), 403, content_type="text/xml")
