locals {
  role_policies = {
    gateway = data.aws_iam_policy_document.gateway.json
    runner  = data.aws_iam_policy_document.runner.json
    warmer  = data.aws_iam_policy_document.warmer.json
  }

  # https://docs.aws.amazon.com/autoscaling/ec2/userguide/tag-security.html
  group_arns    = ["${local.arn}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/${local.prefix}-*"]
  instance_arns = ["${local.arn}:ec2:${local.region}:${local.account}:instance/*"]
}

data "aws_iam_policy_document" "assume" {
  for_each = toset(["ec2", "lambda"])

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["${each.key}.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "this" {
  for_each = local.role_policies

  name                 = "${local.prefix}-${each.key}-${local.region}" # roles are the account's, not the region's
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.assume[each.key == "warmer" ? "lambda" : "ec2"].json

  tags = local.tags
}

resource "aws_iam_role_policy" "this" {
  for_each = local.role_policies

  name   = each.key
  role   = aws_iam_role.this[each.key].id
  policy = each.value
}

resource "aws_iam_instance_profile" "this" {
  for_each = toset(["gateway", "runner"])

  name = "${local.prefix}-${each.key}-${local.region}"
  role = aws_iam_role.this[each.key].name

  tags = local.tags
}

# Statements that several roles share. Those on "*" are of actions that know no resources.
data "aws_iam_policy_document" "look" {
  statement {
    sid       = "Look"
    actions   = ["autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities", "ec2:DescribeInstances"]
    resources = ["*"]
  }
}

# The user and the password of Redis, where there are some (redis_passwords, redis_secret_arn).
data "aws_iam_policy_document" "redis" {
  statement {
    sid       = "RedisSecret"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [coalesce(var.redis_secret_arn, "${local.arn}:secretsmanager:${local.region}:${local.account}:secret:${local.prefix}/redis-*")]
  }
}

data "aws_iam_policy_document" "wake" {
  statement {
    sid       = "WakeGroups"
    actions   = ["autoscaling:SetDesiredCapacity"]
    resources = local.group_arns

    condition { # not those of a stack whose prefix begins with this one's
      test     = "StringEquals"
      variable = "autoscaling:ResourceTag/Project"
      values   = [local.prefix]
    }
  }
  statement {
    sid       = "WakeInstances"
    actions   = ["ec2:StartInstances"]
    resources = local.instance_arns

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/Project"
      values   = [local.prefix]
    }
    condition { # a host, not the gateway
      test     = "Null"
      variable = "aws:ResourceTag/Host"
      values   = ["false"]
    }
  }
}

data "aws_iam_policy_document" "sleep" {
  statement {
    sid       = "SleepGroups"
    actions   = ["autoscaling:TerminateInstanceInAutoScalingGroup"]
    resources = local.group_arns

    condition { # not those of a stack whose prefix begins with this one's
      test     = "StringEquals"
      variable = "autoscaling:ResourceTag/Project"
      values   = [local.prefix]
    }
  }
  statement {
    sid       = "SleepInstances"
    actions   = ["ec2:StopInstances"]
    resources = local.instance_arns

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/Project"
      values   = [local.prefix]
    }
    condition { # a host, not the gateway
      test     = "Null"
      variable = "aws:ResourceTag/Host"
      values   = ["false"]
    }
  }
}

# What kms_key_arn encrypts: secrets and objects are read with the caller's own right to the key, and so is an instance
# started whose disk it encrypts. https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
data "aws_iam_policy_document" "key" {
  statement {
    sid       = "Key"
    actions   = ["kms:Decrypt"]
    resources = compact([var.kms_key_arn])
  }
}

data "aws_iam_policy_document" "key_of_disks" {
  statement {
    sid       = "KeyOfDisks"
    actions   = ["kms:CreateGrant"]
    resources = compact([var.kms_key_arn])

    condition {
      test     = "Bool"
      variable = "kms:GrantIsForAWSResource"
      values   = ["true"]
    }
  }
}

data "aws_iam_policy_document" "lambda_in_vpc" {
  statement {
    sid = "NetworkInterface"
    actions = [
      "ec2:AssignPrivateIpAddresses",
      "ec2:CreateNetworkInterface",
      "ec2:DeleteNetworkInterface",
      "ec2:DescribeNetworkInterfaces",
      "ec2:DescribeSubnets",
      "ec2:UnassignPrivateIpAddresses",
    ]
    resources = ["*"]
  }
}

# A shell on an instance through Systems Manager, as no port is open for one.
data "aws_iam_policy_document" "session" {
  statement {
    sid = "Session"
    actions = [
      "ssm:UpdateInstanceInformation",
      "ssmmessages:CreateControlChannel",
      "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel",
      "ssmmessages:OpenDataChannel",
    ]
    resources = ["*"]
  }
}

data "aws_iam_policy_document" "logs" {
  for_each = local.log_groups

  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.this[each.key].arn}:*"]
  }
}

data "aws_iam_policy_document" "gateway" {
  source_policy_documents = concat([
    data.aws_iam_policy_document.look.json,
    data.aws_iam_policy_document.wake.json,
    data.aws_iam_policy_document.sleep.json, # gateway sleep
    data.aws_iam_policy_document.logs["gateway"].json,
    data.aws_iam_policy_document.session.json,
  ], var.kms_key_arn == null ? [] : [data.aws_iam_policy_document.key.json, data.aws_iam_policy_document.key_of_disks.json])

  statement {
    sid       = "Secrets"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = concat([for s in values(aws_secretsmanager_secret.this) : s.arn], var.redis_secret_arn == null ? [] : [var.redis_secret_arn])
  }
  statement {
    sid       = "Files"
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.models.arn}/artifacts/*", "${aws_s3_bucket.models.arn}/config/*"]
  }
}

data "aws_iam_policy_document" "warmer" {
  source_policy_documents = concat([
    data.aws_iam_policy_document.look.json,
    data.aws_iam_policy_document.redis.json,
    data.aws_iam_policy_document.wake.json, # planned warm-ups
    data.aws_iam_policy_document.sleep.json,
    data.aws_iam_policy_document.logs["warmer"].json,
    data.aws_iam_policy_document.lambda_in_vpc.json,
  ], var.kms_key_arn == null ? [] : [data.aws_iam_policy_document.key.json, data.aws_iam_policy_document.key_of_disks.json])
}

data "aws_iam_policy_document" "runner" {
  source_policy_documents = concat([
    data.aws_iam_policy_document.redis.json,
    data.aws_iam_policy_document.logs["runner"].json,
    data.aws_iam_policy_document.session.json,
  ], var.kms_key_arn == null ? [] : [data.aws_iam_policy_document.key.json])

  statement {
    sid       = "Secret"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = distinct(concat([aws_secretsmanager_secret.this["runner-secret"].arn], flatten([for p in values(var.runner_pools) : values(p.secrets)])))
  }
  statement {
    sid     = "Files"
    actions = ["s3:GetObject"]
    resources = [
      "${aws_s3_bucket.models.arn}/artifacts/*",
      "${aws_s3_bucket.models.arn}/engines/*",
      "${aws_s3_bucket.models.arn}/models/*",
    ]
  }
  statement {
    sid       = "ListFiles"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.models.arn]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = ["engines/*", "models/*"]
    }
  }
  statement {
    sid       = "Lifecycle"
    actions   = ["autoscaling:CompleteLifecycleAction"]
    resources = local.group_arns

    condition { # not those of a stack whose prefix begins with this one's
      test     = "StringEquals"
      variable = "autoscaling:ResourceTag/Project"
      values   = [local.prefix]
    }
  }
}
