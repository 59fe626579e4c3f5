// Package stack holds the tests of the Terraform stack: its README is true, its settings are flags of the programs, and it
// can be applied to an AWS emulator and destroyed without a trace.
package stack
