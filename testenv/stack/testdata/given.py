"""Make what a stack may be given, and print it as values for Terraform: given.py URL PREFIX BOUNDARY.

It is a network with two subnets that lead out, a key, the user of a Redis, and BOUNDARY, a policy that bounds roles. None of
their names has PREFIX, which is the stack's.
"""
import json
import sys

import boto3

URL, _, BOUNDARY = sys.argv[1:]


def client(service):
    return boto3.client(service, endpoint_url=URL, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


ec2 = client("ec2")
vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
subnets = [ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{i}.0/24", AvailabilityZone=f"us-east-1{z}")["Subnet"]["SubnetId"] for i, z in enumerate("ab")]
internet = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
ec2.attach_internet_gateway(InternetGatewayId=internet, VpcId=vpc)
routes = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"][0]["RouteTableId"]
ec2.create_route(RouteTableId=routes, DestinationCidrBlock="0.0.0.0/0", GatewayId=internet)
user = {"username": "pool", "password": "a-password-of-the-tests"}
print(json.dumps({
    "kms_key_arn": client("kms").create_key()["KeyMetadata"]["Arn"],
    "permissions_boundary": client("iam").create_policy(PolicyName="bounds", PolicyDocument=BOUNDARY)["Policy"]["Arn"],
    "redis_secret_arn": client("secretsmanager").create_secret(Name="given-redis", SecretString=json.dumps(user))["ARN"],
    "redis_url": "rediss://redis.example:6380/0",
    "subnet_ids": subnets,
    "vpc_id": vpc,
}))
