# The stack's own network, or the subnets of an existing one. Whether subnets are given decides, as an id may be known after
# apply only.
locals {
  own_network        = length(var.subnet_ids) == 0
  ipv6               = var.enable_ipv6 && local.own_network
  vpc_id             = local.own_network ? one(aws_vpc.this[*].id) : var.vpc_id
  public_subnet_ids  = local.own_network ? aws_subnet.public[*].id : var.subnet_ids
  private_subnet_ids = local.own_network ? aws_subnet.private[*].id : var.subnet_ids
  host_subnets = (local.own_network
    ? { for i, z in local.zones : z => aws_subnet.public[i].id }
    : { for z, ids in { for s in data.aws_subnet.given : s.availability_zone => s.id... } : z => ids[0] }
  )
}

data "aws_subnet" "given" {
  count = length(var.subnet_ids)

  id = var.subnet_ids[count.index]
}

resource "aws_vpc" "this" {
  count = local.own_network ? 1 : 0

  cidr_block                       = var.vpc_cidr
  enable_dns_hostnames             = true
  enable_dns_support               = true
  assign_generated_ipv6_cidr_block = local.ipv6

  tags = merge(local.tags, { Name = local.prefix })
}

# Nothing uses it, and whatever is put into it by mistake reaches nothing.
resource "aws_default_security_group" "this" {
  count = local.own_network ? 1 : 0

  vpc_id = aws_vpc.this[0].id

  tags = local.tags
}

resource "aws_internet_gateway" "this" {
  count = local.own_network ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = local.prefix })
}

resource "aws_egress_only_internet_gateway" "this" {
  count = local.ipv6 ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = local.prefix })
}

# Public: the gateway instance and the hosts. An address costs only while its host runs; there is no NAT gateway.
resource "aws_subnet" "public" {
  count = local.own_network ? var.zones : 0

  vpc_id                          = aws_vpc.this[0].id
  cidr_block                      = cidrsubnet(var.vpc_cidr, 8, count.index)
  ipv6_cidr_block                 = local.ipv6 ? cidrsubnet(aws_vpc.this[0].ipv6_cidr_block, 8, count.index) : null
  assign_ipv6_address_on_creation = local.ipv6
  availability_zone               = local.zones[count.index]
  map_public_ip_on_launch         = true

  tags = merge(local.tags, { Name = "${local.prefix}-public-${count.index}" })
}

# Private: the cache and the warmer's function. IPv6 leads out, nothing leads in, IPv4 does neither.
resource "aws_subnet" "private" {
  count = local.own_network ? var.zones : 0

  vpc_id                          = aws_vpc.this[0].id
  cidr_block                      = cidrsubnet(var.vpc_cidr, 8, 16 + count.index)
  ipv6_cidr_block                 = local.ipv6 ? cidrsubnet(aws_vpc.this[0].ipv6_cidr_block, 8, 16 + count.index) : null
  assign_ipv6_address_on_creation = local.ipv6
  availability_zone               = local.zones[count.index]

  tags = merge(local.tags, { Name = "${local.prefix}-private-${count.index}" })
}

resource "aws_route_table" "public" {
  count = local.own_network ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = "${local.prefix}-public" })
}

resource "aws_route" "public_ipv4" {
  count = local.own_network ? 1 : 0

  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this[0].id
}

resource "aws_route" "public_ipv6" {
  count = local.ipv6 ? 1 : 0

  route_table_id              = aws_route_table.public[0].id
  destination_ipv6_cidr_block = "::/0"
  gateway_id                  = aws_internet_gateway.this[0].id
}

resource "aws_route_table_association" "public" {
  count = local.own_network ? var.zones : 0

  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_route_table" "private" {
  count = local.own_network ? 1 : 0

  vpc_id = aws_vpc.this[0].id
  tags   = merge(local.tags, { Name = "${local.prefix}-private" })
}

resource "aws_route" "private_ipv6" {
  count = local.ipv6 ? 1 : 0

  route_table_id              = aws_route_table.private[0].id
  destination_ipv6_cidr_block = "::/0"
  egress_only_gateway_id      = aws_egress_only_internet_gateway.this[0].id
}

resource "aws_route_table_association" "private" {
  count = local.own_network ? var.zones : 0

  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private[0].id
}

# Free, and model files do not pass the internet gateway.
resource "aws_vpc_endpoint" "s3" {
  count = local.own_network ? 1 : 0

  vpc_id          = aws_vpc.this[0].id
  service_name    = "com.amazonaws.${local.region}.s3"
  route_table_ids = [aws_route_table.public[0].id, aws_route_table.private[0].id]

  tags = merge(local.tags, { Name = "${local.prefix}-s3" })
}

# Without dual-stack endpoints, the only way from a Lambda function in the VPC to AWS's APIs.
resource "aws_vpc_endpoint" "api" {
  for_each = local.dual_stack || !local.own_network ? toset([]) : toset(concat(["ec2", "autoscaling"], local.cache_auth || var.redis_secret_arn != null ? ["secretsmanager"] : []))

  vpc_id              = aws_vpc.this[0].id
  service_name        = "com.amazonaws.${local.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = [aws_subnet.private[0].id] # one zone: each costs by zone
  security_group_ids  = [aws_security_group.endpoint[0].id]
  private_dns_enabled = true

  tags = merge(local.tags, { Name = "${local.prefix}-${each.key}" })
}

resource "aws_security_group" "endpoint" {
  count = local.dual_stack || !local.own_network ? 0 : 1

  name        = "${local.prefix}-endpoint"
  description = "Interface endpoints"
  vpc_id      = aws_vpc.this[0].id

  tags = merge(local.tags, { Name = "${local.prefix}-endpoint" })
}

resource "aws_vpc_security_group_ingress_rule" "endpoint" {
  count = local.dual_stack || !local.own_network ? 0 : 1

  security_group_id = aws_security_group.endpoint[0].id
  cidr_ipv4         = var.vpc_cidr
  from_port         = 443
  to_port           = 443
  ip_protocol       = "tcp"

  tags = local.tags
}

resource "aws_security_group" "this" {
  for_each = merge({
    gateway = "Gateway"
    warmer  = "Warmer"
    runner  = "Hosts"
  }, local.cache_mode == "given" ? {} : { cache = "Redis" })

  name        = "${local.prefix}-${each.key}"
  description = each.value
  vpc_id      = local.vpc_id

  tags = merge(local.tags, { Name = "${local.prefix}-${each.key}" })
}

resource "aws_vpc_security_group_egress_rule" "ipv4" {
  for_each = toset(["gateway", "warmer", "runner"])

  security_group_id = aws_security_group.this[each.key].id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"

  tags = local.tags
}

resource "aws_vpc_security_group_egress_rule" "ipv6" {
  for_each = local.ipv6 ? toset(["gateway", "warmer", "runner"]) : toset([])

  security_group_id = aws_security_group.this[each.key].id
  cidr_ipv6         = "::/0"
  ip_protocol       = "-1"

  tags = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "cache" {
  for_each = local.cache_mode == "given" ? toset([]) : toset(["gateway", "warmer", "runner"])

  security_group_id            = aws_security_group.this["cache"].id
  referenced_security_group_id = aws_security_group.this[each.key].id
  from_port                    = local.cache_port
  to_port                      = local.cache_port + 1 # a serverless cache reads on the next port
  ip_protocol                  = "tcp"

  tags = merge(local.tags, { Name = "${local.prefix}-cache-from-${each.key}" })
}

# Runners are spoken to by gateways alone; one rule for each port that pools use.
resource "aws_vpc_security_group_ingress_rule" "runner" {
  for_each = toset([for p in values(var.runner_pools) : tostring(p.port)])

  security_group_id            = aws_security_group.this["runner"].id
  referenced_security_group_id = aws_security_group.this["gateway"].id
  from_port                    = tonumber(each.key)
  to_port                      = tonumber(each.key)
  ip_protocol                  = "tcp"

  tags = merge(local.tags, { Name = "${local.prefix}-runner-${each.key}" })
}
