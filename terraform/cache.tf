resource "aws_elasticache_serverless_cache" "this" {
  count = local.cache_mode == "serverless" ? 1 : 0

  name                 = local.prefix
  description          = "State of the pool and encoder cache"
  engine               = "valkey"
  major_engine_version = "8"
  subnet_ids           = local.private_subnet_ids
  security_group_ids   = [aws_security_group.this["cache"].id]
  kms_key_id           = var.kms_key_arn
  user_group_id        = one(aws_elasticache_user_group.this[*].user_group_id)

  cache_usage_limits {
    data_storage {
      maximum = var.cache_max_gb
      unit    = "GB"
    }
    ecpu_per_second {
      maximum = 5000
    }
  }

  tags = local.tags
}

# The pool's user, if there is a password. The provider has no write-only argument for it in this version. A rotation is two
# applies: with both passwords, the new one first, and with the new one alone once the programs have read the secret again.
# https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/Clusters.RBAC.html
resource "aws_elasticache_user" "pool" {
  count = local.cache_auth ? 1 : 0

  user_id       = "${local.prefix}-pool"
  user_name     = "${local.prefix}-pool"
  engine        = "valkey"
  access_string = "on ~rv:* ~mm:* &rv:* +@all -@admin -@dangerous"
  passwords     = var.redis_passwords

  tags = local.tags
}

resource "aws_elasticache_user_group" "this" {
  count = local.cache_auth ? 1 : 0

  user_group_id = local.prefix
  engine        = "valkey"
  user_ids      = [aws_elasticache_user.pool[0].user_id]

  tags = local.tags
}

resource "aws_elasticache_subnet_group" "this" {
  count = local.cache_mode == "node" ? 1 : 0

  name        = local.prefix
  description = "Private subnets of ${local.prefix}"
  subnet_ids  = local.private_subnet_ids

  tags = local.tags
}

# The default, volatile-lru, may evict leases, which have a TTL. A serverless cache has no other policy, and evicts only when
# data reaches its limit: the encoder cache's quota keeps it below.
# https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/ParameterGroups.Engine.html
resource "aws_elasticache_parameter_group" "this" {
  count = local.cache_mode == "node" ? 1 : 0

  name        = local.prefix
  description = "State of the pool, which is never evicted"
  family      = "valkey8"

  parameter {
    name  = "maxmemory-policy"
    value = "noeviction"
  }

  tags = local.tags
}

resource "aws_elasticache_replication_group" "this" {
  count = local.cache_mode == "node" ? 1 : 0

  replication_group_id       = local.prefix
  description                = "State of the pool and encoder cache"
  engine                     = "valkey"
  engine_version             = "8.0"
  node_type                  = "cache.t4g.micro"
  num_cache_clusters         = 1
  parameter_group_name       = aws_elasticache_parameter_group.this[0].name
  port                       = local.cache_port
  subnet_group_name          = aws_elasticache_subnet_group.this[0].name
  security_group_ids         = [aws_security_group.this["cache"].id]
  at_rest_encryption_enabled = true
  kms_key_id                 = var.kms_key_arn
  transit_encryption_enabled = true
  user_group_ids             = local.cache_auth ? aws_elasticache_user_group.this[*].user_group_id : null
  apply_immediately          = true

  tags = local.tags
}

locals {
  cache_mode = var.redis_url == null ? var.cache_mode : "given"
  cache_auth = nonsensitive(length(var.redis_passwords)) > 0
  cache_port = 6379
  mm_quota   = local.cache_mode == "serverless" ? "${var.cache_max_gb * 512}MiB" : "128MiB" # half of it, a third of the node's
  redis_url = (local.cache_mode == "given" ? var.redis_url
    : local.cache_mode == "serverless" ? one([for c in aws_elasticache_serverless_cache.this : "rediss://${c.endpoint[0].address}:${c.endpoint[0].port}/0?cluster=true"])
    : one([for r in aws_elasticache_replication_group.this : "rediss://${r.primary_endpoint_address}:${r.port}/0"])
  )
  redis = regex("^(?P<scheme>rediss?)://(?P<host>[^:/?]+):(?P<port>[0-9]+)(?:/[0-9]*)?(?P<cluster>\\?cluster=true)?$", local.redis_url)
}
