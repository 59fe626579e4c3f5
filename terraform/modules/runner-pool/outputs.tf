output "hosts" {
  description = "The pool's hosts by name, as entries of a catalogue."
  value = {
    for host in local.hosts : host => merge(
      {
        devices = ["cpu", var.accelerator]
        labels  = [var.pool]
      },
      var.strategy == "stopped" ? { driver = "ec2", instance = aws_instance.this[host].id } : null,
      var.strategy == "stopped" ? null : { driver = "asg", group = aws_autoscaling_group.this[host].name, max = coalesce(var.max_size, 1) },
      var.price == null ? null : { price = var.price },
    )
  }
}

output "launch_template_id" {
  description = "Launch template of the hosts."
  value       = aws_launch_template.this.id
}
