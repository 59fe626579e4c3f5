variable "api_keys" {
  description = "API keys that the gateway accepts."
  type        = list(string)
  sensitive   = true
  ephemeral   = true
}

variable "dist_dir" {
  description = "Folder with the programs; null is dist at the top of this repository."
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "KMS key of all that is stored; null for AWS's own."
  type        = string
  default     = null
}

variable "permissions_boundary" {
  description = "Policy that bounds the roles; null: none."
  type        = string
  default     = null
}

variable "redis_secret_arn" {
  description = "Secret with the user and password of redis_url; null: none."
  type        = string
  default     = null
}

variable "redis_url" {
  description = "An existing Redis, such as rediss://HOST:6379/0; null: the stack makes a cache."
  type        = string
  default     = null
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"
}

variable "runner_secret" {
  description = "What gateways and runners sign their calls with."
  type        = string
  sensitive   = true
  ephemeral   = true
}

variable "subnet_ids" {
  description = "2 or 3 subnets of the VPC in different zones."
  type        = list(string)
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}
