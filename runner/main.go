// Command runner is the daemon of one host: it starts and stops engines as the pool's queue asks, and passes requests
// to them.
package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"reveille/infra/config"
	"reveille/infra/state"
	"reveille/runner/app"
)

func main() {
	var s app.Settings
	config.MustParse(&s, "runner", "Runs the inference engines of one host for a Reveille pool.", kong.Vars{"runner_addr": "127.0.0.1:8090"}, config.IntakeVars(true))
	ctx := config.UntilSignal()
	log := s.Logger(os.Stderr)
	state.LogLibrary(log)
	if err := app.Run(ctx, s, log, nil); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}
