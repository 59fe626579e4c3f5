# TLS before the gateway's instance.

locals {
  # Seconds that CloudFront waits for the first byte of an answer, and between two. A request without stream that waits for a
  # cold model ends before, with 503 and Retry-After; a stream has a comment every 5 s. Idle connections end before the
  # gateway's 60 s, so that none is used while the gateway closes it.
  # https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/DownloadDistValuesOrigin.html
  origin_timeout     = 120 # at most
  origin_keepalive   = 50  # less than the gateway's 60
  hold_whole_seconds = var.front == "cloudfront" ? min(var.hold_seconds, local.origin_timeout - 10) : var.hold_seconds
}

data "aws_ec2_managed_prefix_list" "cloudfront" {
  count = var.front == "cloudfront" ? 1 : 0

  name = "com.amazonaws.global.cloudfront.origin-facing"
}

resource "aws_vpc_security_group_ingress_rule" "gateway_from_cloudfront" {
  count = var.front == "cloudfront" ? 1 : 0

  security_group_id = aws_security_group.this["gateway"].id
  prefix_list_id    = data.aws_ec2_managed_prefix_list.cloudfront[0].id
  from_port         = var.gateway_port
  to_port           = var.gateway_port
  ip_protocol       = "tcp"

  tags = local.tags
}

# CloudFront reaches the instance inside the VPC, so that keys do not cross the internet between the two in the clear. An origin in
# use takes no other instance: a new gateway gets one of its own, and the distribution moves there.
# https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/private-content-vpc-origins.html
resource "aws_cloudfront_vpc_origin" "this" {
  count = var.front == "cloudfront" ? 1 : 0

  vpc_origin_endpoint_config {
    name                   = "${local.prefix}-${aws_instance.gateway.id}"
    arn                    = aws_instance.gateway.arn
    http_port              = var.gateway_port
    https_port             = 443
    origin_protocol_policy = "http-only"

    origin_ssl_protocols {
      items    = ["TLSv1.2"]
      quantity = 1
    }
  }

  tags = local.tags

  timeouts {
    create = "30m"
    delete = "30m"
  }

  lifecycle {
    create_before_destroy = true
    replace_triggered_by  = [aws_instance.gateway.id]
  }

  depends_on = [aws_internet_gateway.this] # VPC origins need one, though nothing passes it
}

resource "aws_cloudfront_distribution" "this" {
  count = var.front == "cloudfront" ? 1 : 0

  comment         = "${local.prefix} gateway"
  enabled         = true
  is_ipv6_enabled = true
  http_version    = "http2and3"
  price_class     = "PriceClass_100"

  origin {
    origin_id   = "gateway"
    domain_name = aws_instance.gateway.private_dns

    vpc_origin_config {
      vpc_origin_id            = aws_cloudfront_vpc_origin.this[0].id
      origin_read_timeout      = local.origin_timeout
      origin_keepalive_timeout = local.origin_keepalive
    }
  }

  default_cache_behavior {
    target_origin_id         = "gateway"
    viewer_protocol_policy   = "https-only"
    allowed_methods          = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]
    cached_methods           = ["GET", "HEAD"]
    cache_policy_id          = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad" # AWS's CachingDisabled
    origin_request_policy_id = "216adef6-5c7f-47e4-b989-5492eafa07d3" # AWS's AllViewer
    compress                 = false                                  # compression would gather a stream's events
  }

  restrictions {
    geo_restriction {
      restriction_type = "none"
    }
  }

  viewer_certificate {
    cloudfront_default_certificate = true
  }

  tags = local.tags
}

resource "aws_security_group" "nlb" {
  count = var.front == "nlb" ? 1 : 0

  name        = "${local.prefix}-nlb"
  description = "Load balancer"
  vpc_id      = local.vpc_id

  tags = merge(local.tags, { Name = "${local.prefix}-nlb" })
}

resource "aws_vpc_security_group_ingress_rule" "nlb" {
  for_each = var.front == "nlb" ? toset(var.gateway_allowed_cidrs) : toset([])

  security_group_id = aws_security_group.nlb[0].id
  cidr_ipv4         = each.value
  from_port         = 443
  to_port           = 443
  ip_protocol       = "tcp"

  tags = local.tags
}

resource "aws_vpc_security_group_egress_rule" "nlb" {
  count = var.front == "nlb" ? 1 : 0

  security_group_id            = aws_security_group.nlb[0].id
  referenced_security_group_id = aws_security_group.this["gateway"].id
  from_port                    = var.gateway_port
  to_port                      = var.gateway_port
  ip_protocol                  = "tcp"

  tags = merge(local.tags, { Name = "${local.prefix}-nlb-to-gateway" })
}

resource "aws_vpc_security_group_ingress_rule" "gateway_from_nlb" {
  count = var.front == "nlb" ? 1 : 0

  security_group_id            = aws_security_group.this["gateway"].id
  referenced_security_group_id = aws_security_group.nlb[0].id
  from_port                    = var.gateway_port
  to_port                      = var.gateway_port
  ip_protocol                  = "tcp"

  tags = merge(local.tags, { Name = "${local.prefix}-gateway-from-nlb" })
}

resource "aws_lb" "this" {
  count = var.front == "nlb" ? 1 : 0

  name               = local.prefix
  load_balancer_type = "network"
  subnets            = local.public_subnet_ids
  internal           = !local.own_network
  security_groups    = [aws_security_group.nlb[0].id]

  enable_cross_zone_load_balancing = true # the gateway is in one zone

  tags = local.tags
}

resource "aws_lb_target_group" "gateway" {
  count = var.front == "nlb" ? 1 : 0

  name     = "${local.prefix}-gw"
  port     = var.gateway_port
  protocol = "TCP"
  vpc_id   = local.vpc_id

  health_check {
    protocol = "HTTP"
    path     = "/live"
    interval = 10
  }

  tags = local.tags
}

resource "aws_lb_target_group_attachment" "gateway" {
  count = var.front == "nlb" ? 1 : 0

  target_group_arn = aws_lb_target_group.gateway[0].arn
  target_id        = aws_instance.gateway.id
}

resource "aws_lb_listener" "tls" {
  count = var.front == "nlb" ? 1 : 0

  load_balancer_arn = aws_lb.this[0].arn
  port              = 443
  protocol          = "TLS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.gateway[0].arn
  }

  tags = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "gateway_plain" {
  for_each = var.front == "none" ? toset(var.gateway_allowed_cidrs) : toset([])

  security_group_id = aws_security_group.this["gateway"].id
  cidr_ipv4         = each.value
  from_port         = var.gateway_port
  to_port           = var.gateway_port
  ip_protocol       = "tcp"

  tags = local.tags
}
