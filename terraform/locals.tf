locals {
  prefix  = "${var.name}-${var.environment}"
  account = data.aws_caller_identity.current.account_id
  region  = data.aws_region.current.name
  arn     = "arn:${data.aws_partition.current.partition}"
  zones   = slice(data.aws_availability_zones.available.names, 0, min(var.zones, length(data.aws_availability_zones.available.names)))

  # EC2 has dual-stack endpoints in these regions (botocore 1.44.5, endpoints.json). Elsewhere the warmer's function reaches it through
  # interface endpoints. https://docs.aws.amazon.com/ec2/latest/devguide/ec2-endpoints.html
  dual_stack = local.ipv6 && contains([
    "af-south-1", "ap-east-1", "ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2", "ca-central-1",
    "eu-central-1", "eu-north-1", "eu-south-1", "eu-west-1", "eu-west-2", "eu-west-3", "me-south-1", "sa-east-1", "us-east-1",
    "us-east-2", "us-west-1", "us-west-2",
  ], local.region)

  dist = coalesce(var.dist_dir, "${path.module}/../dist")

  precious = var.environment == "prod" # secrets and models are not deleted with the rest

  # Policies know hosts by Project.
  tags = merge(var.tags, {
    Project     = local.prefix
    Environment = var.environment
    ManagedBy   = "terraform"
  })

  # Settings that all programs share, as their environment variables.
  settings = merge({
    REVEILLE_LOG_FORMAT = "json"
    REVEILLE_POOL       = local.prefix
    REVEILLE_REDIS_URL  = local.redis_url
    },
    local.cache_auth ? { REVEILLE_REDIS_SECRET = aws_secretsmanager_secret_version.redis[0].secret_id } : {},
    var.redis_secret_arn != null ? { REVEILLE_REDIS_SECRET = var.redis_secret_arn } : {},
  )

  # The deployment's catalogue: the user's models, and the hosts that were made.
  catalogue   = var.models_file == null ? null : yamldecode(templatefile(var.models_file, { model_bucket = aws_s3_bucket.models.bucket }))
  hosts       = merge([for p in values(module.runner_pool) : p.hosts]...)
  models_yaml = yamlencode(merge(local.catalogue, { hosts = merge(try(local.catalogue.hosts, null), local.hosts) }))
}

# Availability zones proper: no Local Zone or Wavelength Zone, which an account may have opted into and which lack services.
data "aws_availability_zones" "available" {
  state            = "available"
  exclude_zone_ids = var.exclude_zone_ids

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }

  lifecycle {
    postcondition {
      condition     = !local.own_network || length(self.names) >= var.zones
      error_message = "${local.region} has ${length(self.names)} zones that may be used: set zones = 2, or another region."
    }
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}
