// Package stack holds the tests of the Terraform stack: its README is true, its settings are flags of the programs, wrong
// variables are refused with the fix, and a host's user data boots. With -stack it is applied to an AWS emulator, put to work
// there, and destroyed without a trace.
package stack
