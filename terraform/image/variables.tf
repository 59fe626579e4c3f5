variable "accelerator" {
  description = "gpu or npu."
  type        = string
  default     = "gpu"

  validation {
    condition     = contains(["gpu", "npu"], var.accelerator)
    error_message = "accelerator must be \"gpu\" or \"npu\"."
  }
}

variable "engine" {
  description = "Folder below engines/ of the bucket with the build of the engine; null: the accelerator's name."
  type        = string
  default     = null
}

variable "image_version" {
  description = "Version of the image; raise it to build another one."
  type        = string
  default     = "1.0.0"

  validation {
    condition     = can(regex("^[0-9]+\\.[0-9]+\\.[0-9]+$", var.image_version))
    error_message = "image_version must be such as 1.0.0."
  }
}

variable "instance_type" {
  description = "Instance type that builds; it needs no accelerator, and the engine is started with --version alone."
  type        = string
  default     = "m7i.large"
}

variable "model_bucket" {
  description = "The stack's output model_bucket, with the engine in engines/gpu or engines/npu."
  type        = string
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"
}

variable "security_group_ids" {
  description = "Security groups in subnet_id."
  type        = list(string)
  default     = []
}

variable "subnet_id" {
  description = "Subnet that leads to AWS's APIs; null: the default VPC."
  type        = string
  default     = null
}
