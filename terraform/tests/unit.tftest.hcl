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
    condition     = length(aws_instance.gateway) == 1 && length(aws_lambda_function.gateway) == 0
    error_message = "The gateway is one instance."
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
    condition     = length(aws_sns_topic_subscription.alarms) == 0
    error_message = "Nobody is subscribed unasked."
  }
}

run "values" {
  command = apply # of mocks

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
    condition     = strcontains(aws_instance.gateway[0].user_data, "REVEILLE_REDIS_URL=rediss://cache.example:6379/0?cluster=true\n")
    error_message = "The gateway speaks TLS and the Cluster protocol."
  }
  assert {
    condition     = !strcontains(aws_instance.gateway[0].user_data, "a-key-for-the-tests")
    error_message = "No key is in the user data."
  }
  assert {
    condition     = aws_s3_object.artifact["libreveille_mm_linux_amd64.so"].key == "artifacts/libreveille_mm_linux_amd64.so"
    error_message = "The encoder cache's library is there for hosts."
  }
}

run "two_pools_three_zones" {
  command = apply # of mocks
  variables {
    alarm_email = "ops@example.com"
    models_file = "examples/npu/models.yaml"
    zones       = 3
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
    condition     = yamldecode(aws_s3_object.models_yaml.content).models["qwen3-4b"].checkpoint == "s3://reveille-dev-models-123456789012/models/qwen3-4b-q4_k_m.gguf"
    error_message = "model_bucket becomes the bucket's name."
  }
  assert {
    condition     = join(" ", keys(aws_vpc_security_group_ingress_rule.runner)) == "8090 8091"
    error_message = "One rule for each port of runners."
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
    condition     = output.redis_cli == "redis-cli --tls -h node.example -p 6379" && strcontains(aws_instance.gateway[0].user_data, "REVEILLE_REDIS_URL=rediss://node.example:6379/0\n")
    error_message = "A node is no Cluster."
  }
}

run "gateway_in_lambda" {
  command = apply # of mocks
  variables {
    gateway_mode = "lambda"
    enable_ipv6  = false
    hold_seconds = 840
  }
  assert {
    condition     = aws_lambda_function_url.gateway[0].invoke_mode == "RESPONSE_STREAM" && length(aws_instance.gateway) == 0 && length(aws_eip.gateway) == 0
    error_message = "The function URL streams and there is no instance."
  }
  assert {
    condition     = aws_lambda_function_url.gateway[0].authorization_type == "NONE" && aws_lambda_permission.gateway_url[0].action == "lambda:InvokeFunction" && aws_lambda_permission.gateway_url[0].principal == "*"
    error_message = "Everybody may invoke it by its URL: the gateway checks API keys."
  }
  assert {
    condition     = length(aws_cloudfront_distribution.this) == 0 && output.gateway_url == "https://mock.lambda-url.us-east-1.on.aws"
    error_message = "A function URL has TLS of its own."
  }
  assert {
    condition     = contains(keys(aws_vpc_endpoint.api), "secretsmanager") && !contains(keys(aws_cloudwatch_metric_alarm.this), "gateway-down")
    error_message = "The function reaches its secrets, and no instance is watched."
  }
  assert {
    condition     = aws_lambda_function.gateway[0].runtime == "provided.al2023" && aws_lambda_function.gateway[0].timeout == 900
    error_message = "The program is its own runtime and has all the time there is."
  }
  assert {
    condition     = length(aws_lambda_function.gateway[0].vpc_config[0].subnet_ids) == 2 && length(aws_lambda_function.gateway[0].vpc_config[0].security_group_ids) == 1
    error_message = "The function is in the private subnets, where Redis is."
  }
  assert {
    condition = alltrue([for name, value in {
      AWS_USE_DUALSTACK_ENDPOINT  = "false"
      REVEILLE_API_KEYS_SECRET    = "reveille-dev/api-keys"
      REVEILLE_HOLD               = "840s"
      REVEILLE_LOG_FORMAT         = "json"
      REVEILLE_MODELS             = "s3://reveille-dev-models-123456789012/config/models.yaml"
      REVEILLE_POOL               = "reveille-dev"
      REVEILLE_REDIS_URL          = "rediss://cache.example:6379/0?cluster=true"
      REVEILLE_RUNNER_SECRET_NAME = "reveille-dev/runner-secret"
    } : aws_lambda_function.gateway[0].environment[0].variables[name] == value])
    error_message = "The function is told where everything is, and no secret."
  }
  assert {
    condition     = !contains(keys(aws_iam_instance_profile.this), "gateway") && !contains(keys(aws_s3_object.artifact), "gateway_linux_arm64")
    error_message = "Nothing of an instance is left."
  }
}

run "gateway_in_lambda_over_ipv6" {
  command = plan
  variables {
    gateway_mode = "lambda"
  }
  assert {
    condition     = length(aws_vpc_endpoint.api) == 0 && aws_lambda_function.gateway[0].vpc_config[0].ipv6_allowed_for_dual_stack
    error_message = "IPv6 needs no endpoint that costs."
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

run "no_zone_has_the_instance_type" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    accelerator           = "gpu"
    artifacts_uri         = "s3://models/dist"
    disk_gb               = 100
    engines_uri           = null
    hosts                 = 1
    image                 = "ami-0123456789abcdef0"
    image_parameter       = null
    instance_profile_name = "runner"
    instance_type         = "p5.48xlarge"
    log_group             = "runners"
    name                  = "reveille-dev-gpu"
    pool                  = "gpu"
    port                  = 8090
    price                 = 1
    runner_secret_id      = "runner"
    security_group_ids    = []
    settings              = {}
    spot                  = false
    strategy              = "stopped"
    subnets               = { us-east-1a = "subnet-a" } # the mock offers it in b and c
    tags                  = {}
  }
  expect_failures = [aws_launch_template.this]
}
