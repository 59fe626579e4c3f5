"""Print what an AWS has of a deployment, one resource a line: left.py URL PREFIX."""
import sys

import boto3

URL, PREFIX = sys.argv[1], sys.argv[2]


def client(service):
    return boto3.client(service, endpoint_url=URL, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


def ours(things, name):
    return [t[name] for t in things if PREFIX in t[name]]


def tagged(things, name):
    return [t[name] for t in things if any(PREFIX in tag["Value"] for tag in t.get("Tags", []))]


ec2, cache, iam = client("ec2"), client("elasticache"), client("iam")
instances = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"] if i["State"]["Name"] != "terminated"]
found = {
    "instance": tagged(instances, "InstanceId"),
    "volume": tagged(ec2.describe_volumes()["Volumes"], "VolumeId"),
    "address": tagged(ec2.describe_addresses()["Addresses"], "AllocationId"),
    "network": tagged(ec2.describe_vpcs()["Vpcs"], "VpcId"),
    "subnet": tagged(ec2.describe_subnets()["Subnets"], "SubnetId"),
    "route table": tagged(ec2.describe_route_tables()["RouteTables"], "RouteTableId"),
    "internet gateway": tagged(ec2.describe_internet_gateways()["InternetGateways"], "InternetGatewayId"),
    "egress-only gateway": tagged(ec2.describe_egress_only_internet_gateways()["EgressOnlyInternetGateways"], "EgressOnlyInternetGatewayId"),
    "endpoint": tagged([e for e in ec2.describe_vpc_endpoints()["VpcEndpoints"] if e["State"].lower() != "deleted"], "VpcEndpointId"),
    "security group": ours(ec2.describe_security_groups()["SecurityGroups"], "GroupName"),
    "launch template": ours(ec2.describe_launch_templates()["LaunchTemplates"], "LaunchTemplateName"),
    "group": ours(client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"], "AutoScalingGroupName"),
    "serverless cache": ours(cache.describe_serverless_caches()["ServerlessCaches"], "ServerlessCacheName"),
    "cache node": ours(cache.describe_replication_groups()["ReplicationGroups"], "ReplicationGroupId"),
    "subnet group": ours(cache.describe_cache_subnet_groups()["CacheSubnetGroups"], "CacheSubnetGroupName"),
    "parameter group": ours(cache.describe_cache_parameter_groups()["CacheParameterGroups"], "CacheParameterGroupName"),
    "bucket": ours(client("s3").list_buckets()["Buckets"], "Name"),
    "function": ours(client("lambda").list_functions()["Functions"], "FunctionName"),
    "schedule": ours(client("events").list_rules()["Rules"], "Name"),
    "log group": ours(client("logs").describe_log_groups()["logGroups"], "logGroupName"),
    "metric filter": ours(client("logs").describe_metric_filters()["metricFilters"], "logGroupName"),
    "alarm": ours(client("cloudwatch").describe_alarms()["MetricAlarms"], "AlarmName"),
    "dashboard": ours(client("cloudwatch").list_dashboards()["DashboardEntries"], "DashboardName"),
    "topic": ours(client("sns").list_topics()["Topics"], "TopicArn"),
    "secret": ours(client("secretsmanager").list_secrets()["SecretList"], "Name"),
    "role": ours(iam.list_roles()["Roles"], "RoleName"),
    "instance profile": ours(iam.list_instance_profiles()["InstanceProfiles"], "InstanceProfileName"),
    "distribution": ours(client("cloudfront").list_distributions()["DistributionList"].get("Items", []), "Comment"),
}
for kind, names in found.items():
    for name in names:
        print(kind, name)
