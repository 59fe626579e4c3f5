# Two GPU pools: a group of cold spot hosts, which are cheap and may be reclaimed, and a stopped on-demand host that is
# there when they are not. A faster disk shortens cold loads.
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
  models_file   = "${path.module}/models.yaml"

  runner_pools = {
    spot = {
      accelerator     = "gpu"
      disk_throughput = 500
      instance_types  = ["g6.xlarge", "g5.xlarge"] # both have 24 GB
      max_size        = 2
      price           = 0.35
      spot            = true
      strategy        = "asg"
    }
    steady = {
      accelerator     = "gpu"
      disk_throughput = 500
      instance_type   = "g6.xlarge"
      price           = 0.80
    }
  }
}
