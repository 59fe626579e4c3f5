output "alarm_topic_arn" {
  description = "SNS topic that alarms are sent to."
  value       = aws_sns_topic.alarms.arn
}

output "dashboard" {
  description = "Name of the CloudWatch dashboard."
  value       = aws_cloudwatch_dashboard.this.dashboard_name
}

output "gateway_instance_id" {
  description = "EC2 instance of the gateway."
  value       = aws_instance.gateway.id
}

output "gateway_url" {
  description = "URL that clients speak to."
  value = (var.front == "cloudfront" ? "https://${one(aws_cloudfront_distribution.this[*].domain_name)}"
    : var.front == "nlb" ? "https://${one(aws_lb.this[*].dns_name)}"
    : "http://${local.own_network ? one(aws_eip.gateway[*].public_ip) : aws_instance.gateway.private_ip}:${var.gateway_port}"
  )
}

output "hosts" {
  description = "The hosts of all pools, as they are in the catalogue."
  value       = local.hosts
}

output "iam_role_arns" {
  description = "Roles of gateway, runner and warmer."
  value       = { for k, r in aws_iam_role.this : k => r.arn }
}

output "launch_template_ids" {
  description = "Launch templates of the pools."
  value       = { for k, p in module.runner_pool : k => p.launch_template_id }
}

output "model_bucket" {
  description = "S3 bucket for checkpoints (models/), engine programs (engines/gpu, engines/npu), artifacts and the catalogue."
  value       = aws_s3_bucket.models.bucket
}

output "model_bucket_arn" {
  description = "ARN of that bucket."
  value       = aws_s3_bucket.models.arn
}

output "private_subnet_ids" {
  description = "Subnets of cache, warmer and endpoints."
  value       = local.private_subnet_ids
}

output "public_subnet_ids" {
  description = "Subnets of gateway and hosts."
  value       = local.public_subnet_ids
}

output "redis_cli" {
  description = "Command that opens the pool's state, to be run on the gateway's instance or a host."
  value       = "redis-cli ${local.redis.scheme == "rediss" ? "--tls " : ""}${local.redis.cluster == null ? "" : "-c "}-h ${local.redis.host} -p ${local.redis.port}"
}

output "redis_endpoint" {
  description = "host:port of the pool's Redis; reached from inside the VPC alone, with TLS."
  value       = "${local.redis.host}:${local.redis.port}"
}

output "secret_arns" {
  description = "Secrets by what they are: api-keys, runner-secret."
  value       = { for k, s in aws_secretsmanager_secret.this : k => s.arn }
}

output "security_group_ids" {
  description = "Security groups of gateway, hosts and warmer; an existing Redis (redis_url) must let them in."
  value       = { for k in ["gateway", "runner", "warmer"] : k => aws_security_group.this[k].id }
}

output "vpc_id" {
  description = "VPC of the stack."
  value       = local.vpc_id
}

output "warmer_function" {
  description = "Name of the warmer's Lambda function."
  value       = aws_lambda_function.warmer.function_name
}

output "warmer_function_arn" {
  description = "ARN of that function."
  value       = aws_lambda_function.warmer.arn
}
