locals {
  prefix  = "${var.name}-${var.environment}"
  account = data.aws_caller_identity.current.account_id
  arn     = "arn:${data.aws_partition.current.partition}"
  zones   = slice(data.aws_availability_zones.available.names, 0, var.zones)
  dist    = coalesce(var.dist_dir, "${path.module}/../dist")

  in_lambda = var.gateway_mode == "lambda"
  front     = local.in_lambda ? "none" : var.front # a function URL has TLS of its own
  precious  = var.environment == "prod"            # secrets and models are not deleted with the rest

  tags = {
    Project     = local.prefix
    Environment = var.environment
    ManagedBy   = "terraform"
  }

  # Settings that all programs share, as their environment variables.
  settings = {
    REVEILLE_LOG_FORMAT = "json"
    REVEILLE_POOL       = local.prefix
    REVEILLE_REDIS_URL  = local.redis_url
  }

  # The deployment's catalogue: the user's models, and the hosts that were made.
  catalogue   = var.models_file == null ? null : yamldecode(templatefile(var.models_file, { model_bucket = aws_s3_bucket.models.bucket }))
  hosts       = merge([for p in values(module.runner_pool) : p.hosts]...)
  models_yaml = yamlencode(merge(local.catalogue, { hosts = merge(try(local.catalogue.hosts, null), local.hosts) }))
}

data "aws_availability_zones" "available" {
  state = "available"
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}
