variable "accelerator" {
  description = "gpu or npu."
  type        = string
}

variable "artifacts_uri" {
  description = "S3 URI of the folder with SHA256SUMS and the runner's program."
  type        = string
}

variable "disk_gb" {
  description = "Size of a host's disk in GB, which also holds the models it keeps."
  type        = number
}

variable "disk_throughput" {
  description = "Throughput of a host's disk in MiB/s."
  type        = number
}

variable "engines_uri" {
  description = "S3 URI of the folder with engine programs; it may be empty."
  type        = string
}

variable "hosts" {
  description = "How many hosts the pool has."
  type        = number
}

variable "idle_alarm_actions" {
  description = "Actions of the alarm of a host of strategy stopped that runs for an hour without work; empty: no alarm."
  type        = list(string)
  default     = []
}

variable "image" {
  description = "AMI id of the hosts; null for image_parameter."
  type        = string
}

variable "image_parameter" {
  description = "SSM parameter with an AMI id; null for the accelerator's default."
  type        = string
}

variable "instance_profile_name" {
  description = "Instance profile of the hosts."
  type        = string
}

variable "instance_types" {
  description = "Instance types of the hosts; of several the group launches one that is available."
  type        = list(string)
}

variable "kms_key_arn" {
  description = "Key of the hosts' disks; null for EBS's own."
  type        = string
}

variable "log_group" {
  description = "Log group of the runners."
  type        = string
}

variable "max_size" {
  description = "How many machines the pool's one Auto Scaling group may have, each a host; null: as many groups of one as hosts."
  type        = number
  default     = null
}

variable "name" {
  description = "Name of the pool among all of the account, such as reveille-dev-gpu."
  type        = string
}

variable "on_demand_base" {
  description = "How many machines of the group are on-demand instances before any spot instance is launched."
  type        = number
  default     = 0
}

variable "on_demand_percent" {
  description = "Percentage of on-demand instances among the machines beyond on_demand_base."
  type        = number
  default     = 0
}

variable "pool" {
  description = "Name of the pool in the deployment, such as gpu; hosts are named after it."
  type        = string
}

variable "port" {
  description = "Port of the runners."
  type        = number
}

variable "price" {
  description = "What an hour of a host costs, in any one currency; null when not said."
  type        = number
}

variable "runner_secret_id" {
  description = "Secret that holds the runner secret."
  type        = string
}

variable "secrets" {
  description = "Environment variables of the runners, each with the ARN of the secret that holds its value."
  type        = map(string)
  default     = {}
}

variable "security_group_ids" {
  description = "Security groups of the hosts."
  type        = list(string)
}

variable "settings" {
  description = "Settings of the runners, as environment variables."
  type        = map(string)
}

variable "spot" {
  description = "Whether the hosts are spot instances."
  type        = bool
}

variable "strategy" {
  description = "stopped, warm_pool or asg."
  type        = string
}

variable "subnets" {
  description = "Subnets that hosts may live in, by availability zone."
  type        = map(string)
}

variable "tags" {
  description = "Tags of instances and volumes, which the provider's default tags do not reach."
  type        = map(string)
}
