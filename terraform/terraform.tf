terraform {
  required_version = ">= 1.11" # write-only arguments and ephemeral resources keep secrets out of the state

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100"
    }
  }
}
