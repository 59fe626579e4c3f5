data "aws_ssm_parameter" "gateway_image" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
}

resource "aws_instance" "gateway" {
  ami                         = data.aws_ssm_parameter.gateway_image.insecure_value
  instance_type               = var.gateway_instance_type
  subnet_id                   = local.public_subnet_ids[0]
  vpc_security_group_ids      = [aws_security_group.this["gateway"].id]
  iam_instance_profile        = aws_iam_instance_profile.this["gateway"].name
  user_data_replace_on_change = true

  user_data = templatefile("${path.module}/templates/gateway_user_data.sh.tftpl", {
    api_keys_id      = aws_secretsmanager_secret.this["api-keys"].name
    artifact_digest  = filesha256("${local.dist}/gateway_linux_arm64")
    artifact_uri     = "s3://${aws_s3_bucket.models.bucket}/${aws_s3_object.artifact["gateway_linux_arm64"].key}"
    log_group        = aws_cloudwatch_log_group.this["gateway"].name
    models_uri       = "s3://${aws_s3_bucket.models.bucket}/config/models.yaml"
    start_uri        = "s3://${aws_s3_bucket.models.bucket}/${aws_s3_object.start_yaml.key}"
    runner_secret_id = aws_secretsmanager_secret.this["runner-secret"].name
    unit             = file("${path.module}/../infra/install/systemd/reveille-gateway.service")

    settings = merge(local.settings, {
      AWS_REGION             = local.region
      REVEILLE_ADDR          = "0.0.0.0:${var.gateway_port}"
      REVEILLE_API_KEYS_FILE = "/run/reveille/api-keys"
      REVEILLE_HOLD          = "${var.hold_seconds}s"
      REVEILLE_HOLD_WHOLE    = "${local.hold_whole_seconds}s"
      REVEILLE_MAX_HELD      = "128MiB" # of the 512 MiB that the smallest instance has
      REVEILLE_MODELS        = "/run/reveille/models.yaml"
    })
  })

  dynamic "credit_specification" { # of burstable types alone; unlimited would bill a busy one without a word
    for_each = startswith(var.gateway_instance_type, "t") ? [1] : []

    content {
      cpu_credits = "standard"
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_put_response_hop_limit = 1
    http_tokens                 = "required"
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 8
    encrypted   = true
    kms_key_id  = var.kms_key_arn
  }

  tags = merge(local.tags, { Name = "${local.prefix}-gateway" })

  lifecycle {
    create_before_destroy = true  # the address moves to the new gateway
    ignore_changes        = [ami] # a newer image alone does not replace a running gateway
  }

  depends_on = [aws_iam_role_policy.this, aws_route.public_ipv4, aws_s3_object.start_yaml, aws_secretsmanager_secret_version.api_keys, aws_secretsmanager_secret_version.runner_secret]
}

resource "aws_eip" "gateway" {
  count = local.own_network ? 1 : 0

  domain = "vpc"
  tags   = merge(local.tags, { Name = "${local.prefix}-gateway" })
}

resource "aws_eip_association" "gateway" {
  count = local.own_network ? 1 : 0

  allocation_id = aws_eip.gateway[0].id
  instance_id   = aws_instance.gateway.id
}
