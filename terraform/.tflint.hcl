plugin "terraform" {
  enabled = true
  preset  = "all"
}

# Files are grouped by concern: there is no main.tf.
rule "terraform_standard_module_structure" {
  enabled = false
}
