module "runner_pool" {
  source   = "./modules/runner-pool"
  for_each = var.runner_pools

  name                  = "${local.prefix}-${each.key}"
  pool                  = each.key
  accelerator           = each.value.accelerator
  artifacts_uri         = "s3://${aws_s3_bucket.models.bucket}/${dirname(aws_s3_object.artifact["SHA256SUMS"].key)}"
  disk_gb               = each.value.disk_gb
  disk_throughput       = each.value.disk_throughput
  engines_uri           = "s3://${aws_s3_bucket.models.bucket}/engines/${coalesce(each.value.engine, each.value.accelerator)}"
  hosts                 = each.value.hosts
  idle_alarm_actions    = each.value.stop_idle ? ["${local.arn}:automate:${local.region}:ec2:stop", aws_sns_topic.alarms.arn] : []
  image                 = each.value.image
  image_parameter       = each.value.image_parameter
  instance_profile_name = aws_iam_instance_profile.this["runner"].name
  instance_types        = concat(each.value.instance_type[*], each.value.instance_types)
  kms_key_arn           = var.kms_key_arn
  log_group             = aws_cloudwatch_log_group.this["runner"].name
  max_size              = each.value.max_size
  on_demand_base        = each.value.on_demand_base
  on_demand_percent     = each.value.on_demand_percent
  port                  = each.value.port
  price                 = each.value.price
  secrets               = each.value.secrets
  runner_secret_id      = aws_secretsmanager_secret.this["runner-secret"].name
  security_group_ids    = [aws_security_group.this["runner"].id]
  spot                  = each.value.spot
  strategy              = each.value.strategy
  subnets               = local.host_subnets
  tags                  = local.tags

  settings = merge(local.settings, {
    REVEILLE_LABELS            = each.key
    REVEILLE_MAX_LOADED_MODELS = each.value.max_loaded_models
    REVEILLE_MM_QUOTA          = local.mm_quota
    },
    each.value.npu_seats == "" ? {} : { REVEILLE_NPU_SEATS = each.value.npu_seats },
    each.value.price == null ? {} : { REVEILLE_PRICE = tostring(each.value.price) },
    { REVEILLE_RECIPES = "/etc/reveille/recipes.yaml" },
    each.value.environment,
  )
}
