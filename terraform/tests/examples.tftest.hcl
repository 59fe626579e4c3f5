# Each root of examples/ is planned as it is. No credentials, no network: every call of the provider is mocked.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  api_keys      = ["a-key-for-the-tests infer,manage"]
  dist_dir      = "tests/fixtures"
  runner_secret = "0123456789abcdef0123456789abcdef"
}

run "minimal" {
  command = plan
  module {
    source = "./examples/minimal"
  }
  variables {
    alarm_email = "ops@example.com"
  }
  assert {
    condition     = join(" ", keys(output.hosts)) == "gpu-1" && output.hosts["gpu-1"].driver == "ec2"
    error_message = "One host, which is an instance."
  }
}

run "npu" {
  command = plan
  module {
    source = "./examples/npu"
  }
  assert {
    condition     = join(" ", [for h in values(output.hosts) : h.driver]) == "ec2 asg"
    error_message = "The GPU host is an instance, the NPU host a group."
  }
}

run "spot" {
  command = plan
  module {
    source = "./examples/spot"
  }
  assert {
    condition     = join(" ", [for name, h in output.hosts : "${name}:${h.driver}"]) == "spot:asg steady-1:ec2"
    error_message = "One group of spot hosts, and a host that is stopped."
  }
}

run "vpc" {
  command = plan
  module {
    source = "./examples/vpc"
  }
  variables {
    kms_key_arn          = "arn:aws:kms:us-east-1:123456789012:key/mock"
    permissions_boundary = "arn:aws:iam::123456789012:policy/mock"
    redis_secret_arn     = "arn:aws:secretsmanager:us-east-1:123456789012:secret:mock-abcdef"
    redis_url            = "rediss://redis.example:6380/0?cluster=true"
    subnet_ids           = ["subnet-a", "subnet-b"]
    tags                 = { Team = "ml" }
    vpc_id               = "vpc-a"
  }
  assert {
    condition     = output.redis_endpoint == "redis.example:6380" && output.redis_cli == "redis-cli --tls -c -h redis.example -p 6380"
    error_message = "The existing Redis is used."
  }
}

run "image" {
  command = plan
  module {
    source = "./image"
  }
  variables {
    model_bucket = "models"
  }
  assert {
    condition     = join(" ", [for p in yamldecode(aws_imagebuilder_component.this.data).phases : p.name]) == "build validate"
    error_message = "The component builds, and tries what it built."
  }
  assert {
    condition     = aws_imagebuilder_image_recipe.this.parent_image == "ami-0123456789abcdef0"
    error_message = "The image is made of AWS's with the driver."
  }
}
