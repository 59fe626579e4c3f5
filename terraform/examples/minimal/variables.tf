variable "alarm_email" {
  description = "E-mail address that hears when hosts run for long or the warmer does not; null for nobody."
  type        = string
}

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
