resource "aws_lambda_function" "warmer" {
  function_name    = "${local.prefix}-warmer"
  description      = "Unloads idle models, puts idle hosts to sleep, wakes planned ones"
  role             = aws_iam_role.this["warmer"].arn
  runtime          = "provided.al2023"
  architectures    = ["arm64"]
  handler          = "bootstrap"
  filename         = "${local.dist}/warmer.zip"
  source_code_hash = filebase64sha256("${local.dist}/warmer.zip")
  timeout          = 55
  memory_size      = 128

  environment {
    variables = merge(local.settings, {
      AWS_USE_DUALSTACK_ENDPOINT = tostring(local.dual_stack)
      REVEILLE_HOST_IDLE         = "${var.host_idle_minutes}m"
      REVEILLE_HOST_MIN_UP       = "${var.host_min_up_minutes}m"
      REVEILLE_IDLE              = "${var.model_idle_minutes}m"
      REVEILLE_PROJECT           = local.prefix
    })
  }

  vpc_config {
    subnet_ids                  = local.private_subnet_ids
    security_group_ids          = [aws_security_group.this["warmer"].id]
    ipv6_allowed_for_dual_stack = local.ipv6
  }

  tags = local.tags

  lifecycle {
    precondition { # make image and make release write into the same folder
      condition     = strcontains(file("${local.dist}/SHA256SUMS"), "${filesha256("${local.dist}/warmer.zip")}  warmer.zip\n")
      error_message = "warmer.zip is not the one that SHA256SUMS of dist_dir names: run make dist again."
    }
  }

  depends_on = [aws_cloudwatch_log_group.this, aws_iam_role_policy.this]
}

# The next minute brings the next sweep: one that failed is not tried again.
resource "aws_lambda_function_event_invoke_config" "warmer" {
  function_name                = aws_lambda_function.warmer.function_name
  maximum_retry_attempts       = 0
  maximum_event_age_in_seconds = 60
}

resource "aws_cloudwatch_event_rule" "warmer" {
  name                = "${local.prefix}-warmer"
  description         = "Runs the warmer"
  schedule_expression = var.warmer_minutes == 1 ? "rate(1 minute)" : "rate(${var.warmer_minutes} minutes)"

  tags = local.tags
}

resource "aws_cloudwatch_event_target" "warmer" {
  rule      = aws_cloudwatch_event_rule.warmer.name
  target_id = "warmer"
  arn       = aws_lambda_function.warmer.arn
}

resource "aws_lambda_permission" "warmer" {
  statement_id  = "Schedule"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.warmer.function_name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.warmer.arn
}
