# What the provider itself checks must look real: ARNs, JSON, networks.
mock_data "aws_iam_policy_document" {
  defaults = { json = "{\"Version\":\"2012-10-17\",\"Statement\":[]}" }
}

mock_data "aws_availability_zones" {
  defaults = { names = ["us-east-1a", "us-east-1b", "us-east-1c"] }
}

mock_data "aws_ec2_instance_type_offerings" {
  defaults = { locations = ["us-east-1b", "us-east-1c"] }
}

mock_data "aws_ec2_managed_prefix_list" {
  defaults = { id = "pl-0123456789abcdef0" }
}

mock_data "aws_caller_identity" {
  defaults = { account_id = "123456789012" }
}

mock_data "aws_region" {
  defaults = { name = "us-east-1" }
}

mock_data "aws_subnet" {
  defaults = { availability_zone = "us-east-1b" }
}

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_data "aws_ssm_parameter" {
  defaults = { insecure_value = "ami-0123456789abcdef0" }
}

mock_data "aws_ami" {
  defaults = { root_device_name = "/dev/xvda", block_device_mappings = [{ device_name = "/dev/xvda", ebs = { volume_size = "65" } }] }
}

mock_resource "aws_instance" {
  defaults = { arn = "arn:aws:ec2:us-east-1:123456789012:instance/i-0123456789abcdef0" }
}

mock_resource "aws_vpc" {
  defaults = { ipv6_cidr_block = "2600:1f18::/56" }
}

mock_resource "aws_elasticache_serverless_cache" {
  defaults = { endpoint = [{ address = "cache.example", port = 6379 }] }
}

mock_resource "aws_elasticache_replication_group" {
  defaults = { primary_endpoint_address = "node.example" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/mock" }
}

mock_resource "aws_lambda_function" {
  defaults = { arn = "arn:aws:lambda:us-east-1:123456789012:function:mock" }
}

mock_resource "aws_sns_topic" {
  defaults = { arn = "arn:aws:sns:us-east-1:123456789012:mock" }
}

mock_resource "aws_cloudwatch_event_rule" {
  defaults = { arn = "arn:aws:events:us-east-1:123456789012:rule/mock" }
}

mock_resource "aws_cloudfront_distribution" {
  defaults = { domain_name = "mock.cloudfront.example" }
}

mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}

mock_resource "aws_lb" {
  defaults = { arn = "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/net/mock/1", dns_name = "mock.elb.example" }
}

mock_resource "aws_lb_target_group" {
  defaults = { arn = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/mock/1" }
}

mock_resource "aws_eip" {
  defaults = { public_ip = "192.0.2.1", public_dns = "ec2-192-0-2-1.compute-1.example" }
}
