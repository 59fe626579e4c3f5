# A stopped GPU host, and an NPU host whose spare waits in a warm pool; one cache node.
# After the apply: aws s3 cp vllm "s3://$(terraform output -raw model_bucket)/engines/npu/vllm"
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
  cache_mode    = "node"
  models_file   = "${path.module}/models.yaml"
  zones         = 3

  runner_pools = {
    gpu = {
      accelerator   = "gpu"
      instance_type = "g6.xlarge"
    }
    npu = {
      accelerator   = "npu"
      disk_gb       = 200
      instance_type = "inf2.xlarge"
      npu_seats     = "llm=1 embedding=1"
      strategy      = "warm_pool"
    }
  }
}
