locals {
  log_groups = {
    gateway = "/${local.prefix}/gateway"
    runner  = "/${local.prefix}/runner"
    warmer  = "/aws/lambda/${local.prefix}-warmer"
  }

  # The warmer writes metrics of the pool into its log; these are counted from the messages of the other logs.
  counted = {
    FailedLoads = { log = "runner", message = "load failed" }
    FailedWakes = { log = "gateway", message = "host could not be woken" }
  }
  counted_namespace = "Reveille/${local.prefix}"
  pool_namespace    = "Reveille"
  pool              = { Pool = local.prefix }
  warmer            = { FunctionName = "${local.prefix}-warmer" }

  alarms = {
    failed-loads = {
      about     = "a model could not be loaded", namespace = local.counted_namespace, metric = "FailedLoads", dimensions = {}
      statistic = "Sum", period = 300, periods = 1, above = 0, missing = "notBreaching"
    }
    failed-wakes = {
      about     = "a host could not be woken", namespace = local.counted_namespace, metric = "FailedWakes", dimensions = {}
      statistic = "Sum", period = 300, periods = 1, above = 0, missing = "notBreaching"
    }
    failed-sweeps = {
      about     = "the warmer could not unload a model or put a host to sleep", namespace = local.pool_namespace, metric = "FailedActions", dimensions = local.pool
      statistic = "Sum", period = 60 * var.warmer_minutes, periods = 5, above = 0, missing = "notBreaching"
    }
    host-hours = { # by what EC2 bills, spares and hosts without a runner included, not by what Redis believes
      about     = "the hosts ran for more than ${var.alarm_host_hours} hours in a day", namespace = local.pool_namespace, metric = "HostsRunning", dimensions = local.pool
      statistic = "Sum", period = 86400, periods = 1, above = var.alarm_host_hours * 60 / var.warmer_minutes, missing = "notBreaching"
    }
    queue-wait = {
      about     = "tickets have waited for ${var.alarm_queue_minutes} minutes", namespace = local.pool_namespace, metric = "Queued", dimensions = local.pool
      statistic = "Minimum", period = 60 * var.warmer_minutes, periods = max(1, ceil(var.alarm_queue_minutes / var.warmer_minutes)), above = 0, missing = "notBreaching"
    }
    warmer-errors = {
      about     = "the warmer fails", namespace = "AWS/Lambda", metric = "Errors", dimensions = local.warmer
      statistic = "Sum", period = 60 * var.warmer_minutes, periods = 3, above = 0, missing = "notBreaching"
    }
    warmer-silent = { # nobody would put hosts to sleep
      about     = "the warmer has not run for ten minutes", namespace = "AWS/Lambda", metric = "Invocations", dimensions = local.warmer
      statistic = "Sum", period = 60 * var.warmer_minutes, periods = max(1, ceil(10 / var.warmer_minutes)), above = null, missing = "breaching"
    }
    gateway-down = {
      about     = "the gateway's instance fails its checks", namespace = "AWS/EC2", metric = "StatusCheckFailed", dimensions = { InstanceId = aws_instance.gateway.id }
      statistic = "Maximum", period = 60, periods = 3, above = 0, missing = "breaching"
    }
  }

  graphs = [
    { title = "Running hosts, as EC2 bills them", stat = "Maximum", metrics = [[local.pool_namespace, "HostsRunning", "Pool", local.prefix]] },
    { title = "Tickets queued", stat = "Maximum", metrics = [[local.pool_namespace, "Queued", "Pool", local.prefix]] },
    { title = "Failures", stat = "Sum", metrics = [[local.counted_namespace, "FailedLoads"], [local.counted_namespace, "FailedWakes"], [local.pool_namespace, "FailedActions", "Pool", local.prefix]] },
  ]

  # From the warmer's log, as each further metric would cost $0.30 a month.
  log_graph = {
    title   = "Hosts, loaded models and requests in flight"
    region  = local.region
    view    = "timeSeries"
    stacked = false
    query   = "SOURCE '${local.log_groups.warmer}' | filter ispresent(HostsReady) | stats max(Hosts) as hosts, max(HostsReady) as ready, max(Models) as models, max(InFlight) as requests by bin(5m)"
  }
}

resource "aws_cloudwatch_log_group" "this" {
  for_each = local.log_groups

  name              = each.value
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn

  tags = local.tags
}

resource "aws_cloudwatch_log_metric_filter" "this" {
  for_each = local.counted

  name           = each.key
  log_group_name = aws_cloudwatch_log_group.this[each.value.log].name
  pattern        = "{ $.msg = \"${each.value.message}\" }"

  metric_transformation {
    namespace = local.counted_namespace
    name      = each.key
    value     = "1"
  }
}

resource "aws_sns_topic" "alarms" {
  name = "${local.prefix}-alarms"

  tags = local.tags
}

resource "aws_sns_topic_subscription" "alarms" {
  count = var.alarm_email == null ? 0 : 1

  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each = local.alarms

  alarm_name          = "${local.prefix}-${each.key}"
  alarm_description   = "${local.prefix}: ${each.value.about}."
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  period              = each.value.period
  evaluation_periods  = each.value.periods
  comparison_operator = each.value.above == null ? "LessThanThreshold" : "GreaterThanThreshold"
  threshold           = each.value.above == null ? 1 : each.value.above
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]

  tags = local.tags
}

# Of the whole account: a budget by tag sees nothing until somebody activates the tag for cost allocation.
resource "aws_budgets_budget" "this" {
  count = var.monthly_budget == null ? 0 : 1

  name         = "${local.prefix}-${local.region}"
  budget_type  = "COST"
  limit_amount = tostring(var.monthly_budget)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  dynamic "notification" {
    for_each = { ACTUAL = 80, FORECASTED = 100 }

    content {
      comparison_operator        = "GREATER_THAN"
      notification_type          = notification.key
      subscriber_email_addresses = [var.alarm_email]
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
    }
  }

  tags = local.tags
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = local.prefix
  dashboard_body = jsonencode({
    widgets = concat([
      for i, g in local.graphs : {
        type   = "metric"
        x      = (i % 2) * 12
        y      = floor(i / 2) * 6
        width  = 12
        height = 6
        properties = {
          title   = g.title
          region  = local.region
          stat    = g.stat
          period  = 60
          metrics = g.metrics
        }
      }
    ], [{ type = "log", x = 12, y = 6, width = 12, height = 6, properties = local.log_graph }])
  })
}
