# One GPU host, stopped at rest. From the folder terraform:
#   terraform apply -var-file examples/minimal/terraform.tfvars
models_file = "examples/minimal/models.yaml"

runner_pools = {
  gpu = {
    accelerator   = "gpu"
    instance_type = "g6.xlarge"
    price         = 0.80
  }
}
