# Plans and messages. No credentials, no network: every call of the provider is mocked.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  api_keys      = ["a-key-for-the-tests infer,manage"]
  dist_dir      = "tests/fixtures"
  runner_secret = "0123456789abcdef0123456789abcdef"
}

run "defaults" {
  command = plan

  assert {
    condition     = aws_instance.gateway.instance_type == "t4g.nano"
    error_message = "The gateway is one small instance."
  }
  assert {
    condition     = length(aws_cloudfront_distribution.this) == 1 && length(aws_lb.this) == 0 && length(aws_vpc_security_group_ingress_rule.gateway_plain) == 0
    error_message = "CloudFront ends TLS, and only CloudFront reaches the gateway."
  }
  assert {
    condition     = length(aws_elasticache_serverless_cache.this) == 1 && length(aws_elasticache_replication_group.this) == 0
    error_message = "The cache is serverless."
  }
  assert {
    condition     = aws_cloudwatch_event_rule.warmer.schedule_expression == "rate(1 minute)" && output.warmer_function == "reveille-dev-warmer"
    error_message = "The warmer runs each minute."
  }
  assert {
    condition     = length(aws_subnet.public) == 2 && length(aws_subnet.private) == 2 && length(aws_vpc_endpoint.api) == 0
    error_message = "Two zones, and no endpoint that costs."
  }
  assert {
    condition     = length(setsubtract(["failed-loads", "failed-sweeps", "failed-wakes", "gateway-down", "host-hours", "queue-wait", "warmer-errors", "warmer-silent"], keys(aws_cloudwatch_metric_alarm.this))) == 0
    error_message = "An alarm is missing."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.this["host-hours"].threshold == 720
    error_message = "12 hours are 720 samples of a minute."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.this["warmer-silent"].evaluation_periods * aws_cloudwatch_metric_alarm.this["warmer-silent"].period == 600
    error_message = "Ten minutes without the warmer are told."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.this["host-hours"].metric_name == "HostsRunning" && aws_lambda_function.warmer.environment[0].variables.REVEILLE_PROJECT == "reveille-dev"
    error_message = "Host hours are those that EC2 bills."
  }
  assert {
    condition = alltrue([
      for r in concat([aws_vpc.this[0], aws_s3_bucket.models, aws_lambda_function.warmer, aws_instance.gateway, aws_sns_topic.alarms, aws_cloudfront_distribution.this[0]], values(aws_iam_role.this)) :
      r.tags.Project == "reveille-dev" && r.tags.ManagedBy == "terraform"
    ])
    error_message = "Resources are tagged without the provider's default_tags."
  }
  assert {
    condition     = length(aws_sns_topic_subscription.alarms) == 0 && length(aws_budgets_budget.this) == 0
    error_message = "Nobody is subscribed unasked."
  }
  assert {
    condition     = aws_lambda_function.warmer.reserved_concurrent_executions == null
    error_message = "A new account has no concurrency to reserve."
  }
  assert {
    condition     = aws_iam_role.this["warmer"].name == "reveille-dev-warmer-us-east-1" && aws_s3_bucket.models.bucket == "reveille-dev-models-123456789012-us-east-1"
    error_message = "Names that are the account's or the world's carry the region."
  }
  assert {
    condition     = one(data.aws_availability_zones.available.filter).name == "opt-in-status" && contains(data.aws_availability_zones.available.exclude_zone_ids, "use1-az3")
    error_message = "No Local Zones, and none without the services."
  }
  assert {
    condition     = aws_instance.gateway.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "Containers do not reach the gateway's role."
  }
  assert {
    condition = alltrue([
      for s in concat(data.aws_iam_policy_document.wake.statement, data.aws_iam_policy_document.sleep.statement) :
      { for c in s.condition : c.variable => join(" ", c.values) } == { "aws:ResourceTag/Project" = "reveille-dev", "aws:ResourceTag/Host" = "false" }
      if length(setintersection(s.actions, ["ec2:StartInstances", "ec2:StopInstances"])) > 0
    ])
    error_message = "Hosts alone are started and stopped, not the gateway."
  }
  assert {
    condition = alltrue([
      for s in concat(data.aws_iam_policy_document.wake.statement, data.aws_iam_policy_document.sleep.statement, data.aws_iam_policy_document.runner.statement) :
      { for c in s.condition : c.variable => join(" ", c.values) } == { "autoscaling:ResourceTag/Project" = "reveille-dev" }
      if anytrue([for a in s.actions : startswith(a, "autoscaling:")])
    ])
    error_message = "Groups of this stack alone are changed, not of one whose prefix begins with this one's."
  }
}

run "values" {
  command = apply # of mocks

  variables {
    runner_pools = {
      gpu = {
        accelerator = "gpu", instance_type = "g6.xlarge", engine = "gpu-b9000", environment = { REVEILLE_WEIGHTS_BYTES = "40GiB" }
        secrets     = { HF_TOKEN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-abcdef" }
      }
    }
  }

  assert {
    condition     = contains([for s in data.aws_iam_policy_document.runner.statement : s.resources if s.sid == "Secret"][0], "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-abcdef")
    error_message = "Hosts may read the secrets of their pool."
  }
  assert {
    condition     = yamldecode(aws_s3_object.start_yaml.content) == { hosts = {} } && aws_s3_object.recipes.key == "artifacts/recipes.yaml"
    error_message = "The gateway has a catalog before any host exists, and hosts have their recipes."
  }
  assert {
    condition     = strcontains(aws_instance.gateway.user_data, "config/start.yaml") && aws_instance.gateway.credit_specification[0].cpu_credits == "standard"
    error_message = "The gateway starts without hosts, and costs what its price says."
  }

  assert {
    condition     = output.redis_endpoint == "cache.example:6379" && output.redis_cli == "redis-cli --tls -c -h cache.example -p 6379"
    error_message = "redis_endpoint is host:port, redis_cli speaks TLS and the Cluster protocol."
  }
  assert {
    condition     = output.gateway_url == "https://mock.cloudfront.example"
    error_message = "gateway_url is CloudFront's."
  }
  assert {
    condition     = yamldecode(aws_s3_object.models_yaml.content).hosts["gpu-1"].driver == "ec2"
    error_message = "The catalogue has the hosts that were made."
  }
  assert {
    condition     = strcontains(aws_instance.gateway.user_data, "REVEILLE_REDIS_URL=rediss://cache.example:6379/0?cluster=true\n")
    error_message = "The gateway speaks TLS and the Cluster protocol."
  }
  assert {
    condition     = !strcontains(aws_instance.gateway.user_data, "a-key-for-the-tests")
    error_message = "No key is in the user data."
  }
  assert {
    condition     = aws_s3_object.artifact["libreveille_mm_linux_amd64.so"].key == "artifacts/libreveille_mm_linux_amd64.so"
    error_message = "The encoder cache's library is there for hosts."
  }
}

# What waits for what, read together: a request without stream ends before CloudFront gives up, and CloudFront drops idle
# connections before the gateway, which does after 60 s.
run "timeouts_behind_cloudfront" {
  command = apply # of mocks

  assert {
    condition = alltrue([for o in one(aws_cloudfront_distribution.this[0].origin).vpc_origin_config :
      tonumber(regex("REVEILLE_HOLD_WHOLE=([0-9]+)s\n", aws_instance.gateway.user_data)[0]) + 10 <= o.origin_read_timeout
      && o.origin_read_timeout <= 120 && o.origin_keepalive_timeout < 60
    ])
    error_message = "A request without stream must hear model_loading before CloudFront's 504."
  }
  assert {
    condition     = one(one(aws_cloudfront_distribution.this[0].origin).vpc_origin_config).vpc_origin_id == aws_cloudfront_vpc_origin.this[0].id && length(one(aws_cloudfront_distribution.this[0].origin).custom_origin_config) == 0
    error_message = "CloudFront reaches the gateway inside the VPC."
  }
  assert {
    condition     = strcontains(aws_instance.gateway.user_data, "REVEILLE_HOLD=300s\n")
    error_message = "Streams wait for as long as hold_seconds says."
  }
}

run "two_pools_three_zones" {
  command = apply # of mocks
  variables {
    alarm_email    = "ops@example.com"
    monthly_budget = 100
    models_file    = "examples/npu/models.yaml"
    zones          = 3
    runner_pools = {
      gpu = { accelerator = "gpu", instance_type = "g6.xlarge", hosts = 2, price = 0.8 }
      npu = { accelerator = "npu", instance_type = "inf2.xlarge", hosts = 2, strategy = "warm_pool", npu_seats = "llm=1", port = 8091 }
    }
  }

  assert {
    condition     = length(aws_subnet.public) == 3 && length(aws_subnet.private) == 3
    error_message = "Three zones."
  }
  assert {
    condition     = join(" ", keys(output.hosts)) == "gpu-1 gpu-2 npu-1 npu-2"
    error_message = "Hosts are named after their pool."
  }
  assert {
    condition     = output.hosts["npu-2"].driver == "asg" && output.hosts["npu-2"].group == "reveille-dev-npu-2" && output.hosts["npu-2"].max == 1
    error_message = "A host of a warm pool is a group of its own."
  }
  assert {
    condition     = join(" ", output.hosts["npu-1"].devices) == "cpu npu" && output.hosts["gpu-1"].price == 0.8
    error_message = "Hosts have their devices and prices."
  }
  assert {
    condition     = yamldecode(aws_s3_object.models_yaml.content).models["qwen3-4b"].checkpoint == "s3://reveille-dev-models-123456789012-us-east-1/models/qwen3-4b-q4_k_m.gguf"
    error_message = "model_bucket becomes the bucket's name."
  }
  assert {
    condition     = join(" ", keys(aws_vpc_security_group_ingress_rule.runner)) == "8090 8091"
    error_message = "One rule for each port of runners."
  }
  assert {
    condition     = one(aws_budgets_budget.this).limit_amount == "100" && length(one(aws_budgets_budget.this).notification) == 2
    error_message = "The budget tells at 80 % spent and 100 % forecast."
  }
  assert {
    condition     = length(aws_sns_topic_subscription.alarms) == 1
    error_message = "alarm_email is subscribed."
  }
}

run "ipv4_only" {
  command = plan
  variables {
    enable_ipv6 = false
  }
  assert {
    condition     = join(" ", keys(aws_vpc_endpoint.api)) == "autoscaling ec2" && length(aws_egress_only_internet_gateway.this) == 0
    error_message = "Without IPv6 the warmer reaches AWS by interface endpoints."
  }
  assert {
    condition     = aws_lambda_function.warmer.environment[0].variables.AWS_USE_DUALSTACK_ENDPOINT == "false"
    error_message = "Without IPv6 there are no dual-stack endpoints."
  }
}

run "region_without_dual_stack_endpoints" {
  command = plan
  override_data {
    target = data.aws_region.current
    values = { name = "eu-central-2" }
  }
  assert {
    condition     = join(" ", keys(aws_vpc_endpoint.api)) == "autoscaling ec2" && aws_lambda_function.warmer.environment[0].variables.AWS_USE_DUALSTACK_ENDPOINT == "false"
    error_message = "The warmer reaches EC2 by interface endpoints."
  }
}

run "node_cache" {
  command = apply # of mocks
  variables {
    cache_mode = "node"
  }
  assert {
    condition     = length(aws_elasticache_serverless_cache.this) == 0 && aws_elasticache_replication_group.this[0].transit_encryption_enabled
    error_message = "The node speaks TLS."
  }
  assert {
    condition = (one(aws_elasticache_parameter_group.this[0].parameter).name == "maxmemory-policy" && one(aws_elasticache_parameter_group.this[0].parameter).value == "noeviction"
    && aws_elasticache_replication_group.this[0].parameter_group_name == aws_elasticache_parameter_group.this[0].name)
    error_message = "Leases are never evicted."
  }
  assert {
    condition     = output.redis_cli == "redis-cli --tls -h node.example -p 6379" && strcontains(aws_instance.gateway.user_data, "REVEILLE_REDIS_URL=rediss://node.example:6379/0\n")
    error_message = "A node is no Cluster."
  }
}

run "load_balancer" {
  command = apply # of mocks
  variables {
    front           = "nlb"
    certificate_arn = "arn:aws:acm:us-east-1:123456789012:certificate/mock"
  }
  assert {
    condition     = aws_lb_listener.tls[0].protocol == "TLS" && output.gateway_url == "https://mock.elb.example" && length(aws_cloudfront_distribution.this) == 0
    error_message = "The load balancer ends TLS."
  }
}

run "plain_http_inside" {
  command = apply # of mocks
  variables {
    front                 = "none"
    gateway_allowed_cidrs = ["10.0.0.0/8"]
  }
  assert {
    condition     = output.gateway_url == "http://192.0.2.1:8080" && aws_vpc_security_group_ingress_rule.gateway_plain["10.0.0.0/8"].cidr_ipv4 == "10.0.0.0/8"
    error_message = "Plain HTTP is for networks that were named."
  }
}

run "network_of_others" {
  command = apply # of mocks
  variables {
    kms_key_arn          = "arn:aws:kms:us-east-1:123456789012:key/mock"
    permissions_boundary = "arn:aws:iam::123456789012:policy/mock"
    redis_secret_arn     = "arn:aws:secretsmanager:us-east-1:123456789012:secret:mock-abcdef"
    redis_url            = "rediss://redis.example:6380/0"
    runner_pools         = { gpu = { accelerator = "gpu", instance_type = "g6.xlarge", disk_throughput = 1000 } }
    subnet_ids           = ["subnet-b", "subnet-c"]
    tags                 = { Team = "ml" }
    vpc_id               = "vpc-a"
  }
  override_data {
    target = data.aws_subnet.given[0]
    values = { id = "subnet-b", availability_zone = "us-east-1b" }
  }
  override_data {
    target = data.aws_subnet.given[1]
    values = { id = "subnet-c", availability_zone = "us-east-1c" }
  }

  assert {
    condition = (length(aws_vpc.this) + length(aws_subnet.public) + length(aws_subnet.private) + length(aws_route_table.public) + length(aws_internet_gateway.this)
    + length(aws_vpc_endpoint.s3) + length(aws_vpc_endpoint.api) + length(aws_eip.gateway) + length(aws_elasticache_serverless_cache.this)) == 0
    error_message = "Network and Redis are there already."
  }
  assert {
    condition     = alltrue([for g in aws_security_group.this : g.vpc_id == "vpc-a"]) && join(" ", keys(output.security_group_ids)) == "gateway runner warmer" && !contains(keys(aws_security_group.this), "cache")
    error_message = "Groups are in the VPC, and told to who must let them in."
  }
  assert {
    condition     = aws_instance.gateway.subnet_id == "subnet-b" && join(" ", aws_lambda_function.warmer.vpc_config[0].subnet_ids) == "subnet-b subnet-c" && aws_lambda_function.warmer.environment[0].variables.AWS_USE_DUALSTACK_ENDPOINT == "false"
    error_message = "Everything is in the subnets that were given."
  }
  assert {
    condition     = aws_lambda_function.warmer.environment[0].variables.REVEILLE_REDIS_URL == "rediss://redis.example:6380/0" && aws_lambda_function.warmer.environment[0].variables.REVEILLE_REDIS_SECRET == var.redis_secret_arn
    error_message = "Programs hear of the existing Redis and its secret."
  }
  assert {
    condition     = alltrue([for r in aws_iam_role.this : r.permissions_boundary == var.permissions_boundary && r.tags.Team == "ml" && r.tags.Project == "reveille-dev"])
    error_message = "Roles have their bounds and their tags."
  }
  assert {
    condition = (alltrue([for s in aws_secretsmanager_secret.this : s.kms_key_id == var.kms_key_arn]) && alltrue([for g in aws_cloudwatch_log_group.this : g.kms_key_id == var.kms_key_arn])
      && aws_instance.gateway.root_block_device[0].kms_key_id == var.kms_key_arn
    && one(one(aws_s3_bucket_server_side_encryption_configuration.models.rule).apply_server_side_encryption_by_default).kms_master_key_id == var.kms_key_arn)
    error_message = "The key encrypts what is stored."
  }
  assert {
    condition     = length(data.aws_iam_policy_document.runner.source_policy_documents) == 4 && length(data.aws_iam_policy_document.warmer.source_policy_documents) == 8
    error_message = "Roles may use the key."
  }
}

run "cold_spot_pool" {
  command = plan
  variables {
    runner_pools = { gpu = { accelerator = "gpu", instance_type = "g5.xlarge", strategy = "asg", spot = true } }
  }
  assert {
    condition     = output.hosts["gpu-1"].group == "reveille-dev-gpu-1"
    error_message = "A cold pool is a group."
  }
}

run "region_with_too_few_zones" {
  command = plan
  variables {
    zones = 3
  }
  override_data {
    target = data.aws_availability_zones.available
    values = { names = ["us-west-1b", "us-west-1c"] }
  }
  expect_failures = [data.aws_availability_zones.available]
}

run "production_keeps_its_data" {
  command = plan
  variables {
    environment = "prod"
  }
  assert {
    condition     = !aws_s3_bucket.models.force_destroy && aws_secretsmanager_secret.this["api-keys"].recovery_window_in_days == 30
    error_message = "Models and secrets of prod are not deleted with the rest."
  }
}

run "warmer_that_is_not_the_built_one" {
  command = plan
  variables {
    dist_dir = "tests/fixtures/mixed"
  }
  expect_failures = [aws_lambda_function.warmer]
}

# Several types, on-demand and spot: the group has a mixed instances policy, and its template asks for no market.
run "group_of_mixed_machines" {
  command = plan
  variables {
    runner_pools = {
      gpu   = { accelerator = "gpu", instance_types = ["g6.xlarge", "g5.xlarge"], strategy = "asg", max_size = 4, spot = true, on_demand_base = 1, on_demand_percent = 25 }
      types = { accelerator = "gpu", instance_types = ["g6.xlarge", "g5.xlarge"], strategy = "asg", max_size = 4 }
    }
  }
  assert {
    condition     = output.hosts["gpu"].group == "reveille-dev-gpu" && output.hosts["gpu"].max == 4 && output.hosts["types"].max == 4
    error_message = "Each pool is one group, one entry of the catalog."
  }
}

run "redis_passwords" {
  command = apply # of mocks
  variables {
    enable_ipv6     = false
    redis_passwords = ["the-new-password-of-redis", "the-old-password-of-redis"]
  }

  assert {
    condition     = length(aws_elasticache_user.pool[0].passwords) == 2 && one(aws_elasticache_user_group.this[0].user_ids) == "reveille-dev-pool" && aws_elasticache_serverless_cache.this[0].user_group_id == "reveille-dev"
    error_message = "The cache takes both passwords of the pool's user."
  }
  assert {
    condition     = jsondecode(aws_secretsmanager_secret_version.redis[0].secret_string).password == "the-new-password-of-redis" && jsondecode(aws_secretsmanager_secret_version.redis[0].secret_string).username == "reveille-dev-pool"
    error_message = "The secret has the new password."
  }
  assert {
    condition     = aws_lambda_function.warmer.environment[0].variables.REVEILLE_REDIS_SECRET == aws_secretsmanager_secret_version.redis[0].secret_id && strcontains(aws_instance.gateway.user_data, "REVEILLE_REDIS_SECRET=") && !strcontains(aws_instance.gateway.user_data, "password-of-redis")
    error_message = "Programs hear of the secret, not of the password."
  }
  assert {
    condition     = contains(keys(aws_vpc_endpoint.api), "secretsmanager")
    error_message = "Without IPv6 the warmer reaches Secrets Manager by an endpoint."
  }
}
