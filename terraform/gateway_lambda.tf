resource "aws_lambda_function" "gateway" {
  count = local.in_lambda ? 1 : 0

  function_name    = "${local.prefix}-gateway"
  description      = "Gateway behind a streaming function URL"
  role             = aws_iam_role.this["gateway"].arn
  runtime          = "provided.al2023"
  architectures    = ["arm64"]
  handler          = "bootstrap"
  filename         = "${local.dist}/gateway.zip"
  source_code_hash = filebase64sha256("${local.dist}/gateway.zip")
  timeout          = 900 # the most there is; the gateway ends what is open 5 s before
  memory_size      = 512

  environment {
    variables = merge(local.settings, {
      AWS_USE_DUALSTACK_ENDPOINT  = tostring(local.dual_stack)
      REVEILLE_API_KEYS_SECRET    = aws_secretsmanager_secret.this["api-keys"].name
      REVEILLE_HOLD               = "${var.hold_seconds}s"
      REVEILLE_MODELS             = "s3://${aws_s3_bucket.models.bucket}/${aws_s3_object.models_yaml.key}"
      REVEILLE_RUNNER_SECRET_NAME = aws_secretsmanager_secret.this["runner-secret"].name
    })
  }

  vpc_config {
    subnet_ids                  = local.private_subnet_ids
    security_group_ids          = [aws_security_group.this["gateway"].id]
    ipv6_allowed_for_dual_stack = local.ipv6
  }

  tags = local.tags

  # What the function reads before its first request.
  depends_on = [aws_cloudwatch_log_group.this, aws_iam_role_policy.this, aws_secretsmanager_secret_version.api_keys, aws_secretsmanager_secret_version.runner_secret]
}

# The gateway checks API keys: it does not start without, and refuses requests that have none. AWS_IAM would put a signature into
# the header Authorization, where clients of OpenAI's API put their key. So would CloudFront's origin access control, which
# also wants the digest of each POST's body from the client.
# https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/private-content-restricting-access-to-lambda.html
resource "aws_lambda_function_url" "gateway" {
  count = local.in_lambda ? 1 : 0

  function_name      = aws_lambda_function.gateway[0].function_name
  authorization_type = "NONE"
  invoke_mode        = "RESPONSE_STREAM"
}

# The provider adds lambda:InvokeFunctionUrl by itself; URLs made since October 2025 need this one too. It cannot say "through
# the URL alone" in this version: whoever invokes the function directly meets the same check of API keys.
resource "aws_lambda_permission" "gateway_url" {
  count = local.in_lambda ? 1 : 0

  statement_id  = "PublicInvokeThroughUrl"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.gateway[0].function_name
  principal     = "*"
}
