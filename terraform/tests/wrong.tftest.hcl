# Every wrong value is refused, by the variable that has it. Nothing is planned: the provider is never asked.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  api_keys      = ["a-key-for-the-tests"]
  dist_dir      = "tests/fixtures"
  runner_secret = "0123456789abcdef0123456789abcdef"
}

run "each_variable" {
  command = plan
  variables {
    alarm_email           = "nobody"
    alarm_host_hours      = 0
    alarm_queue_minutes   = 1.5
    api_keys              = ["short"]
    api_keys_version      = 0
    cache_max_gb          = 0
    cache_mode            = "memcached"
    dist_dir              = "tests/nothing"
    environment           = "Prod!"
    front                 = "alb"
    gateway_instance_type = "t3.nano"
    gateway_port          = 80
    hold_seconds          = 0
    host_idle_minutes     = 0
    host_min_up_minutes   = -1
    log_retention_days    = 2
    model_idle_minutes    = 0
    models_file           = "tests/nothing.yaml"
    name                  = "Reveille_"
    region                = "moon"
    vpc_cidr              = "10.0.0.0/24"
    warmer_minutes        = 0.5
    zones                 = 1
    runner_secret         = "short"
    runner_secret_version = 0
  }
  expect_failures = [
    var.alarm_email,
    var.alarm_host_hours,
    var.alarm_queue_minutes,
    var.api_keys,
    var.api_keys_version,
    var.cache_max_gb,
    var.cache_mode,
    var.dist_dir,
    var.environment,
    var.front,
    var.gateway_instance_type,
    var.gateway_port,
    var.hold_seconds,
    var.host_idle_minutes,
    var.host_min_up_minutes,
    var.log_retention_days,
    var.model_idle_minutes,
    var.models_file,
    var.name,
    var.region,
    var.vpc_cidr,
    var.warmer_minutes,
    var.zones,
    var.runner_secret,
    var.runner_secret_version,
  ]
}

run "each_variable_again" {
  command = plan
  variables {
    gateway_mode          = "fargate"
    gateway_allowed_cidrs = ["here"]
    api_keys              = []
    models_file           = "tests/fixtures/SHA256SUMS"
  }
  expect_failures = [
    var.gateway_mode,
    var.gateway_allowed_cidrs,
    var.api_keys,
    var.models_file,
  ]
}

run "load_balancer_without_certificate" {
  command = plan
  variables {
    front = "nlb"
  }
  expect_failures = [var.certificate_arn]
}

run "plain_http_for_all" {
  command = plan
  variables {
    front = "none"
  }
  expect_failures = [var.front]
}

run "hold_longer_than_lambda" {
  command = plan
  variables {
    gateway_mode = "lambda"
    hold_seconds = 900
  }
  expect_failures = [var.hold_seconds]
}

run "pools_none" {
  command = plan
  variables {
    runner_pools = {}
  }
  expect_failures = [var.runner_pools]
}

run "pools_name" {
  command = plan
  variables {
    runner_pools = { "GPU 1" = { accelerator = "gpu", instance_type = "g6.xlarge" } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_accelerator" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "tpu", instance_type = "g6.xlarge" } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_npu_type" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "npu", instance_type = "g6.xlarge" } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_gpu_type" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "t3.large" } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_strategy" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "g6.xlarge", strategy = "frozen" } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_spot_stopped" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "g6.xlarge", spot = true } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_hosts" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "g6.xlarge", hosts = 0 } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_disk" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "g6.xlarge", disk_gb = 8 } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_port" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "g6.xlarge", port = 80 } }
  }
  expect_failures = [var.runner_pools]
}

run "pools_two_images" {
  command = plan
  variables {
    runner_pools = { x = { accelerator = "gpu", instance_type = "g6.xlarge", image = "ami-1", image_parameter = "/p" } }
  }
  expect_failures = [var.runner_pools]
}
