// Command runner is the daemon of one host: it starts and stops engines as the pool's queue asks, and passes requests
// to them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"reveille/infra/config"
	"reveille/infra/state"
	"reveille/runner/app"
	"reveille/runner/upstream"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "report":
			report(os.Args[2:])
			return
		case "upstream":
			relay(os.Args[2:])
			return
		}
	}
	s := app.Settings{ClientLimits: config.RunnerClientLimits()}
	config.MustParse(&s, "runner", "Runs the inference engines of one host for a Reveille pool.")
	ctx := config.UntilSignal()
	log := s.Logger(os.Stderr)
	state.LogLibrary(log)
	if err := app.Run(ctx, s, log, nil); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}

// report is `runner report`: a machine that boots says so before it starts its runner.
func report(args []string) {
	var s app.ReportSettings
	_, err := config.Parse(&s, "runner report", "Tells a Reveille pool that this host's machine is booting, or why its start failed.", args)
	if err == nil {
		err = app.Report(config.UntilSignal(), s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner report:", err)
		os.Exit(1)
	}
}

// relay is `runner upstream`, the engine of recipe upstream.
func relay(args []string) {
	var s upstream.Settings
	_, err := config.Parse(&s, "runner upstream", "Stands for a model that another server serves, and turns that server on and off.", args)
	if err == nil {
		// The threads of a runner that is killed end one by one, and each sends the signal again.
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = upstream.Run(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
