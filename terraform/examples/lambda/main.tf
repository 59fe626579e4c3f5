# The gateway behind a function URL: nothing but the state costs at rest.
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
  gateway_mode  = "lambda"
  models_file   = "${path.module}/../minimal/models.yaml"
}
