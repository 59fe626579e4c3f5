// Package instance knows of the machine that a runner lives on what only its cloud can tell, and tells the cloud how the
// runner gets on: Metadata reads the instance metadata service, Watch waits for the word that the machine is taken away,
// and a Group, which holds a new or leaving machine back at a lifecycle hook, is told to wait no longer.
//
// It decides nothing about the runner: who watches drains the host.
package instance
