locals {
  secrets = {
    api-keys      = "API keys that the gateway accepts, one a line with its scopes"
    runner-secret = "Shared by gateways and runners, which sign what they say to each other"
  }
}

resource "aws_secretsmanager_secret" "this" {
  for_each = local.secrets

  name                    = "${local.prefix}/${each.key}"
  description             = each.value
  recovery_window_in_days = local.precious ? 30 : 0
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
