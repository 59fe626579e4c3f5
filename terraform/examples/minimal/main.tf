# One GPU host, stopped at rest.
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

  alarm_email   = var.alarm_email
  api_keys      = var.api_keys
  dist_dir      = var.dist_dir
  runner_secret = var.runner_secret
  models_file   = "${path.module}/models.yaml"

  runner_pools = {
    gpu = {
      accelerator   = "gpu"
      instance_type = "g6.xlarge"
      price         = 0.80
    }
  }
}
