resource "aws_vpc" "this" {
  cidr_block                       = var.vpc_cidr
  enable_dns_hostnames             = true
  enable_dns_support               = true
  assign_generated_ipv6_cidr_block = var.enable_ipv6

  tags = { Name = local.prefix }
}

# Nothing uses it, and whatever is put into it by mistake reaches nothing.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = local.prefix }
}

resource "aws_egress_only_internet_gateway" "this" {
  count = var.enable_ipv6 ? 1 : 0

  vpc_id = aws_vpc.this.id
  tags   = { Name = local.prefix }
}

# Public: the gateway instance and the hosts. An address costs only while its host runs; there is no NAT gateway.
resource "aws_subnet" "public" {
  count = var.zones

  vpc_id                          = aws_vpc.this.id
  cidr_block                      = cidrsubnet(var.vpc_cidr, 8, count.index)
  ipv6_cidr_block                 = var.enable_ipv6 ? cidrsubnet(aws_vpc.this.ipv6_cidr_block, 8, count.index) : null
  assign_ipv6_address_on_creation = var.enable_ipv6
  availability_zone               = local.zones[count.index]
  map_public_ip_on_launch         = true

  tags = { Name = "${local.prefix}-public-${count.index}" }
}

# Private: the cache and the Lambda functions. IPv6 leads out, nothing leads in, IPv4 does neither.
resource "aws_subnet" "private" {
  count = var.zones

  vpc_id                          = aws_vpc.this.id
  cidr_block                      = cidrsubnet(var.vpc_cidr, 8, 16 + count.index)
  ipv6_cidr_block                 = var.enable_ipv6 ? cidrsubnet(aws_vpc.this.ipv6_cidr_block, 8, 16 + count.index) : null
  assign_ipv6_address_on_creation = var.enable_ipv6
  availability_zone               = local.zones[count.index]

  tags = { Name = "${local.prefix}-private-${count.index}" }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${local.prefix}-public" }
}

resource "aws_route" "public_ipv4" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route" "public_ipv6" {
  count = var.enable_ipv6 ? 1 : 0

  route_table_id              = aws_route_table.public.id
  destination_ipv6_cidr_block = "::/0"
  gateway_id                  = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "public" {
  count = var.zones

  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${local.prefix}-private" }
}

resource "aws_route" "private_ipv6" {
  count = var.enable_ipv6 ? 1 : 0

  route_table_id              = aws_route_table.private.id
  destination_ipv6_cidr_block = "::/0"
  egress_only_gateway_id      = aws_egress_only_internet_gateway.this[0].id
}

resource "aws_route_table_association" "private" {
  count = var.zones

  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private.id
}

# Free, and model files do not pass the internet gateway.
resource "aws_vpc_endpoint" "s3" {
  vpc_id          = aws_vpc.this.id
  service_name    = "com.amazonaws.${var.region}.s3"
  route_table_ids = [aws_route_table.public.id, aws_route_table.private.id]

  tags = { Name = "${local.prefix}-s3" }
}

# Without dual-stack endpoints, the only way from a Lambda function in the VPC to AWS's APIs.
resource "aws_vpc_endpoint" "api" {
  for_each = local.dual_stack ? toset([]) : toset(concat(["ec2", "autoscaling"], local.in_lambda || local.cache_auth ? ["secretsmanager"] : []))

  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = [aws_subnet.private[0].id] # one zone: each costs by zone
  security_group_ids  = [aws_security_group.endpoint[0].id]
  private_dns_enabled = true

  tags = { Name = "${local.prefix}-${each.key}" }
}

resource "aws_security_group" "endpoint" {
  count = local.dual_stack ? 0 : 1

  name        = "${local.prefix}-endpoint"
  description = "Interface endpoints"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${local.prefix}-endpoint" }
}

resource "aws_vpc_security_group_ingress_rule" "endpoint" {
  count = local.dual_stack ? 0 : 1

  security_group_id = aws_security_group.endpoint[0].id
  cidr_ipv4         = var.vpc_cidr
  from_port         = 443
  to_port           = 443
  ip_protocol       = "tcp"
}

resource "aws_security_group" "this" {
  for_each = {
    gateway = "Gateway"
    warmer  = "Warmer"
    runner  = "Hosts"
    cache   = "Redis"
  }

  name        = "${local.prefix}-${each.key}"
  description = each.value
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${local.prefix}-${each.key}" }
}

resource "aws_vpc_security_group_egress_rule" "ipv4" {
  for_each = toset(["gateway", "warmer", "runner"])

  security_group_id = aws_security_group.this[each.key].id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_vpc_security_group_egress_rule" "ipv6" {
  for_each = var.enable_ipv6 ? toset(["gateway", "warmer", "runner"]) : toset([])

  security_group_id = aws_security_group.this[each.key].id
  cidr_ipv6         = "::/0"
  ip_protocol       = "-1"
}

resource "aws_vpc_security_group_ingress_rule" "cache" {
  for_each = toset(["gateway", "warmer", "runner"])

  security_group_id            = aws_security_group.this["cache"].id
  referenced_security_group_id = aws_security_group.this[each.key].id
  from_port                    = local.cache_port
  to_port                      = local.cache_port + 1 # a serverless cache reads on the next port
  ip_protocol                  = "tcp"

  tags = { Name = "${local.prefix}-cache-from-${each.key}" }
}

# Runners are spoken to by gateways alone; one rule for each port that pools use.
resource "aws_vpc_security_group_ingress_rule" "runner" {
  for_each = toset([for p in values(var.runner_pools) : tostring(p.port)])

  security_group_id            = aws_security_group.this["runner"].id
  referenced_security_group_id = aws_security_group.this["gateway"].id
  from_port                    = tonumber(each.key)
  to_port                      = tonumber(each.key)
  ip_protocol                  = "tcp"

  tags = { Name = "${local.prefix}-runner-${each.key}" }
}
