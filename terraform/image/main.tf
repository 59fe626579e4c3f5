# An image of hosts with the driver, the runner and the engine on its disk, built by EC2 Image Builder: a host of it fetches at its
# first boot only what has changed since. Apply it after the stack, once runner and engine are in the bucket, and give the
# output ami to a pool as its image.
terraform {
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

provider "aws" {
  region = var.region
}

locals {
  name = "reveille-host-${var.accelerator}"
  parents = { # as in modules/runner-pool
    gpu = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    npu = "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"
  }
}

data "aws_partition" "current" {}

data "aws_ssm_parameter" "parent" {
  name = local.parents[var.accelerator]
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "files" {
  statement {
    sid       = "Files"
    actions   = ["s3:GetObject"]
    resources = [for folder in ["artifacts", "engines"] : "arn:${data.aws_partition.current.partition}:s3:::${var.model_bucket}/${folder}/*"]
  }
  statement {
    sid       = "ListFiles"
    actions   = ["s3:ListBucket"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::${var.model_bucket}"]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = ["engines/*"]
    }
  }
}

resource "aws_iam_role" "builder" {
  name               = "${local.name}-builder-${var.region}"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "files" {
  name   = "files"
  role   = aws_iam_role.builder.id
  policy = data.aws_iam_policy_document.files.json
}

# https://docs.aws.amazon.com/imagebuilder/latest/userguide/image-builder-setting-up.html
resource "aws_iam_role_policy_attachment" "builder" {
  for_each = toset(["AmazonSSMManagedInstanceCore", "EC2InstanceProfileForImageBuilder"])

  role       = aws_iam_role.builder.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/${each.key}"
}

resource "aws_iam_instance_profile" "builder" {
  name = aws_iam_role.builder.name
  role = aws_iam_role.builder.name
}

resource "aws_imagebuilder_component" "this" {
  name     = local.name
  platform = "Linux"
  version  = var.image_version
  data     = file("${path.module}/component.yaml")

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_imagebuilder_image_recipe" "this" {
  name         = local.name
  parent_image = data.aws_ssm_parameter.parent.insecure_value
  version      = var.image_version

  component {
    component_arn = aws_imagebuilder_component.this.arn

    parameter {
      name  = "Bucket"
      value = var.model_bucket
    }
    parameter {
      name  = "Accelerator"
      value = var.accelerator
    }
    parameter {
      name  = "Engine"
      value = coalesce(var.engine, var.accelerator)
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_imagebuilder_infrastructure_configuration" "this" {
  name                          = local.name
  instance_profile_name         = aws_iam_instance_profile.builder.name
  instance_types                = [var.instance_type]
  subnet_id                     = var.subnet_id
  security_group_ids            = var.subnet_id == null ? null : var.security_group_ids
  terminate_instance_on_failure = true

  instance_metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
}

resource "aws_imagebuilder_image" "this" {
  image_recipe_arn                 = aws_imagebuilder_image_recipe.this.arn
  infrastructure_configuration_arn = aws_imagebuilder_infrastructure_configuration.this.arn

  timeouts {
    create = "90m"
  }

  depends_on = [aws_iam_role_policy.files, aws_iam_role_policy_attachment.builder]
}

output "ami" {
  description = "The image, for a pool's image."
  value       = one(flatten(aws_imagebuilder_image.this.output_resources[*].amis[*].image))
}
