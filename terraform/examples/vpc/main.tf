# In a VPC that is there already, whose subnets lead out by NAT or endpoints, and optionally with its Redis, its key and its
# bounds. Clients come through CloudFront.
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

module "reveille" {
  source = "../.."

  api_keys      = var.api_keys
  dist_dir      = var.dist_dir
  runner_secret = var.runner_secret
  models_file   = "${path.module}/../minimal/models.yaml"

  vpc_id     = var.vpc_id
  subnet_ids = var.subnet_ids

  kms_key_arn          = var.kms_key_arn
  permissions_boundary = var.permissions_boundary
  redis_secret_arn     = var.redis_secret_arn
  redis_url            = var.redis_url
  tags                 = var.tags
}
