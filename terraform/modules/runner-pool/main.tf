locals {
  hosts = var.max_size == null ? [for i in range(var.hosts) : "${var.pool}-${i + 1}"] : [var.pool]

  # A host is an instance, or an Auto Scaling group of at most one: each is woken and put to sleep by itself. With max_size the
  # pool is one group, an entry of the catalogue that is as many hosts.
  instances = var.strategy == "stopped" ? toset(local.hosts) : toset([])
  groups    = var.strategy == "stopped" ? toset([]) : toset(local.hosts)
  full_name = { for host in local.hosts : host => "${var.name}${trimprefix(host, var.pool)}" }

  # AWS's images with the accelerator's driver, and the AWS CLI, in them. Neuron's has vLLM for Inferentia and Trainium too. Ubuntu
  # 24.04 has the C library that llama.cpp's own builds for CUDA need (2.38), Amazon Linux 2023 an older one.
  # https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html
  # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/dlami/index.html
  default_image_parameters = {
    gpu = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    npu = "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"
  }
  image = var.image != null ? var.image : one(data.aws_ssm_parameter.image[*].insecure_value)

  image_gb = max(0, [for d in data.aws_ami.this.block_device_mappings : tonumber(try(d.ebs.volume_size, 0)) if d.device_name == data.aws_ami.this.root_device_name]...)

  # What fetched weights may take of the disk: a fifth of what the image leaves is for engines, logs and saved conversations.
  weights_gib = max(1, floor((var.disk_gb - local.image_gb) * 4 / 5))

  # Several instance types, or on-demand and spot together, are the group's to choose from. Otherwise the launch template says it.
  mixed = length(var.instance_types) > 1 || var.on_demand_base > 0 || var.on_demand_percent > 0

  # Not every zone has every instance type.
  subnet_ids = [for zone in sort(keys(var.subnets)) : var.subnets[zone] if contains(data.aws_ec2_instance_type_offerings.this.locations, zone)]
}

data "aws_ssm_parameter" "image" {
  count = var.image == null ? 1 : 0

  name = coalesce(var.image_parameter, local.default_image_parameters[var.accelerator])
}

data "aws_ami" "this" {
  filter {
    name   = "image-id"
    values = [local.image]
  }
}

data "aws_ec2_instance_type_offerings" "this" {
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = var.instance_types
  }
}

data "aws_ec2_instance_type" "this" {
  instance_type = var.instance_types[0]
}

resource "aws_launch_template" "this" {
  name                   = var.name
  image_id               = local.image
  instance_type          = var.instance_types[0]
  vpc_security_group_ids = var.security_group_ids
  update_default_version = true

  user_data = base64encode(templatefile("${path.module}/templates/user_data.sh.tftpl", {
    artifacts_uri    = var.artifacts_uri
    engines_uri      = var.engines_uri
    launch_hook      = local.launch_hook
    log_group        = var.log_group
    port             = var.port
    runner_secret_id = var.runner_secret_id
    secrets          = var.secrets
    unit             = file("${path.module}/../../../infra/install/systemd/reveille-runner.service")
    settings = merge({
      REVEILLE_DEVICES       = "cpu,${var.accelerator}"
      REVEILLE_INSTANCE      = "aws"
      REVEILLE_WEIGHTS_BYTES = "${local.weights_gib}GiB"
      }, var.settings, var.max_size == null ? {} : {
      REVEILLE_SLOT = "instance"
      }, var.strategy == "stopped" ? {} : {
      REVEILLE_LAUNCH_HOOK    = local.launch_hook
      REVEILLE_TERMINATE_HOOK = local.terminate_hook
    })
  }))

  iam_instance_profile {
    name = var.instance_profile_name
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_put_response_hop_limit = 1 # containers do not reach the role
    http_tokens                 = "required"
    instance_metadata_tags      = "enabled" # a host reads its name from its tags
  }

  block_device_mappings {
    device_name = data.aws_ami.this.root_device_name

    ebs {
      volume_size           = var.disk_gb
      volume_type           = "gp3"
      throughput            = var.disk_throughput
      iops                  = max(3000, 4 * var.disk_throughput) # gp3 gives 1 MiB/s for every 4
      kms_key_id            = var.kms_key_arn
      encrypted             = true
      delete_on_termination = true
    }
  }

  tags = var.tags

  dynamic "instance_market_options" {
    for_each = var.spot && !local.mixed ? [1] : []

    content {
      market_type = "spot"
    }
  }

  tag_specifications {
    resource_type = "instance"
    tags          = var.tags
  }
  tag_specifications {
    resource_type = "volume"
    tags          = var.tags
  }

  lifecycle {
    precondition {
      condition     = length(local.subnet_ids) > 0
      error_message = "No zone of this network has ${join(" or ", var.instance_types)}: use another instance type or region, or set zones = 3."
    }
    precondition { # EC2 refuses the launch otherwise
      condition     = var.disk_gb >= local.image_gb
      error_message = "disk_gb of pool ${var.pool} is ${var.disk_gb}, but its image needs ${local.image_gb}: set disk_gb to at least that, and the size of the models more."
    }
  }
}

# asg, warm_pool. The gateway sets the desired capacity to 1, the warmer takes the host out again.
resource "aws_autoscaling_group" "this" {
  for_each = local.groups

  name                      = local.full_name[each.key]
  min_size                  = 0
  max_size                  = coalesce(var.max_size, 1)
  desired_capacity          = 0
  vpc_zone_identifier       = local.subnet_ids
  wait_for_capacity_timeout = "0"
  health_check_type         = "EC2"

  dynamic "launch_template" {
    for_each = local.mixed ? [] : [1]

    content {
      id      = aws_launch_template.this.id
      version = aws_launch_template.this.latest_version
    }
  }

  dynamic "mixed_instances_policy" {
    for_each = local.mixed ? [1] : []

    content {
      instances_distribution {
        on_demand_allocation_strategy            = "prioritized" # in the order of instance_types
        on_demand_base_capacity                  = var.on_demand_base
        on_demand_percentage_above_base_capacity = var.spot ? var.on_demand_percent : 100
        spot_allocation_strategy                 = "price-capacity-optimized"
      }

      launch_template {
        launch_template_specification {
          launch_template_id = aws_launch_template.this.id
          version            = aws_launch_template.this.latest_version
        }

        dynamic "override" {
          for_each = var.instance_types

          content {
            instance_type = override.value
          }
        }
      }
    }
  }

  dynamic "warm_pool" {
    for_each = var.strategy == "warm_pool" ? [1] : []

    content {
      pool_state = "Stopped"
      # One spare while the group is empty, none while its host works: without max_group_prepared_capacity the pool has
      # max_size less the desired capacity, and at least min_size. Equal to min_size, that limit would make the size absolute,
      # and each wake would launch another accelerator to replace the spare.
      # https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutWarmPool.html
      min_size = 0

      instance_reuse_policy {
        reuse_on_scale_in = true
      }
    }
  }

  # Until the host says that it is ready it is not in service; a spare is not stopped half installed.
  initial_lifecycle_hook {
    name                 = local.launch_hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    heartbeat_timeout    = 900
    default_result       = "ABANDON"
  }

  # A host that the group takes away ends what it serves first. One whose runner is gone waits for nothing else.
  initial_lifecycle_hook {
    name                 = local.terminate_hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    heartbeat_timeout    = 180
    default_result       = "CONTINUE"
  }

  dynamic "tag" {
    for_each = merge(var.tags, { Host = each.key, Name = local.full_name[each.key] })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  lifecycle {
    ignore_changes = [desired_capacity] # the gateway's and the warmer's
  }
}

locals {
  launch_hook    = "runner-ready"
  terminate_hook = "runner-drained"
}

# stopped. Made once and installed at its first boot, which nothing cuts short: its runner registers, and the warmer stops it
# once it has been idle, as after every wake. From then on the gateway starts it and the warmer stops it.
resource "aws_instance" "this" {
  for_each = local.instances

  subnet_id                            = local.subnet_ids[index(local.hosts, each.key) % length(local.subnet_ids)]
  instance_initiated_shutdown_behavior = "stop"

  launch_template {
    id      = aws_launch_template.this.id
    version = aws_launch_template.this.latest_version
  }

  tags = merge(var.tags, { Host = each.key, Name = local.full_name[each.key] })

  # A host fetches its program at every boot. What the template says else reaches it when it is replaced. Its zone is that of its
  # disk: another list of zones at AWS is no reason to replace it.
  lifecycle {
    ignore_changes = [availability_zone, launch_template, subnet_id, user_data, user_data_base64]
  }
}

# A dead man's switch outside Reveille: a host that has done nothing for an hour is stopped even if no warmer does it. Idle hosts
# use 1 to 2 % of their processors. EC2 reports this every 5 minutes at no charge.
resource "aws_cloudwatch_metric_alarm" "idle" {
  for_each = length(var.idle_alarm_actions) == 0 ? toset([]) : local.instances

  alarm_name          = "${local.full_name[each.key]}-idle"
  alarm_description   = "${local.full_name[each.key]}: the host has run for an hour without work, and is stopped."
  namespace           = "AWS/EC2"
  metric_name         = "CPUUtilization"
  dimensions          = { InstanceId = aws_instance.this[each.key].id }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 12
  comparison_operator = "LessThanThreshold"
  threshold           = min(3, 50 / max(1, data.aws_ec2_instance_type.this.default_vcpus)) # at most half a processor
  treat_missing_data  = "notBreaching"                                                     # it is stopped
  alarm_actions       = var.idle_alarm_actions

  tags = var.tags
}
