"""Print where a deployment is and what bounds it, as JSON: placed.py URL PREFIX."""
import json
import sys

import boto3

URL, PREFIX = sys.argv[1:]


def client(service):
    return boto3.client(service, endpoint_url=URL, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


ec2, s3, iam, groups = client("ec2"), client("s3"), client("iam"), client("autoscaling")
mine = [{"Name": "tag:Project", "Values": [PREFIX]}]
instances = [i for r in ec2.describe_instances(Filters=mine)["Reservations"] for i in r["Instances"]]
functions = client("lambda").list_functions()["Functions"]
keys = {"disk " + v["VolumeId"]: v.get("KmsKeyId") for v in ec2.describe_volumes()["Volumes"]}
for t in ec2.describe_launch_templates()["LaunchTemplates"]:
    data = ec2.describe_launch_template_versions(LaunchTemplateId=t["LaunchTemplateId"], Versions=["$Latest"])["LaunchTemplateVersions"][0]
    for m in data["LaunchTemplateData"]["BlockDeviceMappings"]:
        keys["template " + t["LaunchTemplateName"]] = m["Ebs"].get("KmsKeyId")
for b in s3.list_buckets()["Buckets"]:
    rule = s3.get_bucket_encryption(Bucket=b["Name"])["ServerSideEncryptionConfiguration"]["Rules"][0]
    keys["bucket " + b["Name"]] = rule["ApplyServerSideEncryptionByDefault"].get("KMSMasterKeyID")
for s in client("secretsmanager").list_secrets()["SecretList"]:
    if s["Name"].startswith(PREFIX):
        keys["secret " + s["Name"]] = s.get("KmsKeyId")
for g in client("logs").describe_log_groups()["logGroups"]:
    keys["log group " + g["logGroupName"]] = g.get("kmsKeyId")
print(json.dumps({
    "Keys": keys,
    "Bounds": {r["RoleName"]: iam.get_role(RoleName=r["RoleName"])["Role"].get("PermissionsBoundary", {}).get("PermissionsBoundaryArn") for r in iam.list_roles()["Roles"]},
    "Subnets": {
        **{"instance " + i["InstanceId"]: [i["SubnetId"]] for i in instances},
        **{"function " + f["FunctionName"]: f["VpcConfig"]["SubnetIds"] for f in functions},
        **{"group " + g["AutoScalingGroupName"]: g["VPCZoneIdentifier"].split(",") for g in groups.describe_auto_scaling_groups()["AutoScalingGroups"]},
    },
    "Networks": {g["GroupName"]: g["VpcId"] for g in ec2.describe_security_groups()["SecurityGroups"] if PREFIX in g["GroupName"]},
    "Teams": {i["InstanceId"]: [t["Value"] for t in i["Tags"] if t["Key"] == "Team"] for i in instances},
}))
