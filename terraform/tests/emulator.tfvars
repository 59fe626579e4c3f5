# What an AWS emulator needs otherwise, over examples/npu.
api_keys                 = ["a-key-for-the-tests infer,manage"]
enable_bucket_tls_policy = false # emulators refuse by it whatever its condition says
environment              = "local"
runner_secret            = "0123456789abcdef0123456789abcdef"
s3_use_path_style        = true

runner_pools = {
  gpu = {
    accelerator   = "gpu"
    instance_type = "g5.xlarge"
    image         = "ami-12c6146b"
    price         = 1.0
  }
  npu = {
    accelerator   = "npu"
    instance_type = "inf2.xlarge"
    image         = "ami-12c6146b"
    npu_seats     = "llm=1 embedding=1"
    strategy      = "warm_pool"
  }
}
