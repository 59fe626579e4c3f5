# A stopped GPU host, and an NPU host whose spare waits in a warm pool; one cache node. From the folder terraform:
#   terraform apply -var-file examples/npu/terraform.tfvars
#   aws s3 cp examples/npu/vllm "s3://$(terraform output -raw model_bucket)/engines/npu/vllm"
cache_mode  = "node"
models_file = "examples/npu/models.yaml"
zones       = 3

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
