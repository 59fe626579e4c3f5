// Package instance connects a runner with the cloud of its machine. Metadata reads the instance metadata service. Watch
// waits for the notice that the machine is being reclaimed. Group completes the lifecycle hooks at which an Auto
// Scaling group holds back a new or leaving machine.
//
// It decides nothing about the runner: the caller of Watch drains the host.
package instance
