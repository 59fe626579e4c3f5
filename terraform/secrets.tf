locals {
  secrets = merge({
    api-keys      = "API keys that the gateway accepts, one a line with its scopes"
    runner-secret = "Shared by gateways and runners, which sign what they say to each other"
    }, local.cache_auth ? {
    redis = "User and password of the pool in Redis"
  } : {})
}

resource "aws_secretsmanager_secret" "this" {
  for_each = local.secrets

  name                    = "${local.prefix}/${each.key}"
  description             = each.value
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = local.precious ? 30 : 0

  tags = local.tags
}

resource "aws_secretsmanager_secret_version" "api_keys" {
  secret_id                = aws_secretsmanager_secret.this["api-keys"].id
  secret_string_wo         = join("\n", concat(var.api_keys, [""]))
  secret_string_wo_version = var.api_keys_version
}

resource "aws_secretsmanager_secret_version" "runner_secret" {
  secret_id                = aws_secretsmanager_secret.this["runner-secret"].id
  secret_string_wo         = var.runner_secret
  secret_string_wo_version = var.runner_secret_version
}

# In the form of AWS's own rotation, and only once Redis takes the password. Programs read it every minute.
# https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/User-Secrets-Manager.html
resource "aws_secretsmanager_secret_version" "redis" {
  count = local.cache_auth ? 1 : 0

  secret_id     = aws_secretsmanager_secret.this["redis"].id
  secret_string = jsonencode({ username = aws_elasticache_user.pool[0].user_name, password = var.redis_passwords[0], user_arn = aws_elasticache_user.pool[0].arn })
}
