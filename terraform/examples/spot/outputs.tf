output "gateway_instance_id" {
  description = "EC2 instance of the gateway."
  value       = module.reveille.gateway_instance_id
}

output "gateway_url" {
  description = "URL that clients speak to."
  value       = module.reveille.gateway_url
}

output "hosts" {
  description = "The hosts of all pools."
  value       = module.reveille.hosts
}

output "model_bucket" {
  description = "S3 bucket for checkpoints and engine programs."
  value       = module.reveille.model_bucket
}

output "redis_cli" {
  description = "Command that opens the pool's state, to be run on the gateway's instance or a host."
  value       = module.reveille.redis_cli
}

output "redis_endpoint" {
  description = "host:port of the pool's Redis."
  value       = module.reveille.redis_endpoint
}
