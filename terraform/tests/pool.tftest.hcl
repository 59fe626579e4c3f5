# A pool of hosts by itself. No credentials, no network: every call of the provider is mocked.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  accelerator           = "gpu"
  artifacts_uri         = "s3://models/dist"
  disk_gb               = 100
  disk_throughput       = 125
  engines_uri           = "s3://models/engines/gpu"
  hosts                 = 1
  image                 = "ami-0123456789abcdef0"
  image_parameter       = null
  instance_profile_name = "runner"
  instance_types        = ["p5.48xlarge"]
  kms_key_arn           = null
  log_group             = "runners"
  name                  = "reveille-dev-gpu"
  pool                  = "gpu"
  port                  = 8090
  price                 = 1
  runner_secret_id      = "runner"
  security_group_ids    = []
  settings              = { REVEILLE_POOL = "reveille-dev", REVEILLE_REDIS_URL = "rediss://cache.example:6379/0" }
  spot                  = false
  strategy              = "stopped"
  subnets               = { us-east-1b = "subnet-b" }
  tags                  = {}
}

run "no_zone_has_the_instance_type" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    subnets = { us-east-1a = "subnet-a" } # the mock offers it in b and c
  }
  expect_failures = [aws_launch_template.this]
}

run "host_that_nobody_stops" {
  command = apply # of mocks
  module {
    source = "./modules/runner-pool"
  }
  variables {
    idle_alarm_actions = ["arn:aws:automate:us-east-1:ec2:stop"]
    image              = null
    instance_types     = ["g6.xlarge"]
    secrets            = { HF_TOKEN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-abcdef" }
  }
  assert {
    condition = (aws_cloudwatch_metric_alarm.idle["gpu-1"].evaluation_periods * aws_cloudwatch_metric_alarm.idle["gpu-1"].period == 3600
      && aws_cloudwatch_metric_alarm.idle["gpu-1"].dimensions.InstanceId == aws_instance.this["gpu-1"].id
    && one(aws_cloudwatch_metric_alarm.idle["gpu-1"].alarm_actions) == "arn:aws:automate:us-east-1:ec2:stop")
    error_message = "An alarm stops the host after an hour without work."
  }
  assert {
    condition     = one(data.aws_ssm_parameter.image).name == "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    error_message = "The image has the C library that llama.cpp's builds for CUDA need."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.this.user_data), "echo \"HF_TOKEN=$secret\" >>/run/reveille/host.env")
    error_message = "The pool's secret is fetched at each boot."
  }
}

# A pool with max_size is one group, whose machines are hosts.
run "group_of_machines" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    max_size = 4
    strategy = "asg"
  }
  assert {
    condition     = aws_autoscaling_group.this["gpu"].name == "reveille-dev-gpu" && aws_autoscaling_group.this["gpu"].max_size == 4 && output.hosts["gpu"].max == 4
    error_message = "One group, one entry of the catalogue."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.this.user_data), "REVEILLE_SLOT=instance") && strcontains(base64decode(aws_launch_template.this.user_data), "--slot 'instance'")
    error_message = "Its machines claim their hosts."
  }
  assert {
    condition     = length(aws_autoscaling_group.this["gpu"].mixed_instances_policy) == 0 && length(aws_autoscaling_group.this["gpu"].launch_template) == 1
    error_message = "One type is the launch template's."
  }
}

run "mixed_instances_policy" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    instance_types    = ["g6.xlarge", "g5.xlarge"]
    max_size          = 4
    on_demand_base    = 1
    on_demand_percent = 25
    spot              = true
    strategy          = "asg"
  }
  assert {
    condition     = length(aws_launch_template.this.instance_market_options) == 0 && length(aws_autoscaling_group.this["gpu"].launch_template) == 0
    error_message = "The group says how its machines are bought, as Auto Scaling refuses a template that does."
  }
  assert {
    condition     = join(" ", one(aws_autoscaling_group.this["gpu"].mixed_instances_policy).launch_template[0].override[*].instance_type) == "g6.xlarge g5.xlarge"
    error_message = "AWS may launch each of the types."
  }
  assert {
    condition = alltrue([for d in one(aws_autoscaling_group.this["gpu"].mixed_instances_policy).instances_distribution :
      d.on_demand_base_capacity == 1 && d.on_demand_percentage_above_base_capacity == 25
      && d.on_demand_allocation_strategy == "prioritized" && d.spot_allocation_strategy == "price-capacity-optimized"
    ])
    error_message = "One machine and a quarter of the others are on-demand."
  }
  assert {
    condition     = join(" ", one(data.aws_ec2_instance_type_offerings.this.filter).values) == "g5.xlarge g6.xlarge"
    error_message = "Zones are those with any of the types."
  }
}

# Several types without spot are all on-demand.
run "types_on_demand" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    hosts          = 2
    instance_types = ["g6.xlarge", "g5.xlarge"]
    strategy       = "asg"
  }
  assert {
    condition = alltrue([for g in aws_autoscaling_group.this :
      one(one(g.mixed_instances_policy).instances_distribution).on_demand_percentage_above_base_capacity == 100
    ]) && length(aws_autoscaling_group.this) == 2
    error_message = "Nothing is spot unless the pool says so."
  }
}

# A wake takes the spare, and the pool wants no other while its host works: it has max_size less the desired capacity.
run "warm_pool_of_one_machine" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    strategy = "warm_pool"
  }
  assert {
    condition = alltrue([for g in aws_autoscaling_group.this :
      g.min_size == 0 && g.max_size == 1 && g.desired_capacity == 0
      && one(g.warm_pool).min_size == 0 && coalesce(one(g.warm_pool).max_group_prepared_capacity, -1) == -1
    ])
    error_message = "One machine, asleep or awake."
  }
  assert {
    condition     = aws_launch_template.this.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "Containers do not reach the host's role."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.this.user_data), "nvidia-modprobe -u -c 0 ||") && strcontains(base64decode(aws_launch_template.this.user_data), "persistence-mode=1") && strcontains(base64decode(aws_launch_template.this.user_data), "sync --only-show-errors --delete --no-follow-symlinks 's3://models/engines/gpu'")
    error_message = "The GPU's device nodes are made, and engines are those of the bucket."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.this.user_data), "REVEILLE_WEIGHTS_BYTES=28GiB\n") && length(aws_launch_template.this.user_data) < 16384 * 4 / 3
    error_message = "Weights have their part of the disk, and the user data fits."
  }
  assert {
    condition     = aws_launch_template.this.block_device_mappings[0].ebs[0].throughput == 125 && aws_launch_template.this.block_device_mappings[0].ebs[0].iops == 3000
    error_message = "The disk has what gp3 gives for nothing."
  }
}

run "disk_smaller_than_the_image" {
  command = plan
  module {
    source = "./modules/runner-pool"
  }
  variables {
    disk_gb = 64
  }
  expect_failures = [aws_launch_template.this]
}
