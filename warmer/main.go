// Command warmer puts idle models and hosts of a pool to sleep and keeps planned ones warm: on a ticker, once, or as an
// AWS Lambda function on a schedule.
package main

import (
	"context"
	"fmt"
	"os"

	"reveille/infra/config"
	"reveille/infra/power/drivers"
	"reveille/infra/state"
	"reveille/warmer/app"
)

func main() {
	var s app.Settings
	config.MustParse(&s, "warmer", "Puts idle models and hosts of a Reveille pool to sleep, and keeps planned ones warm.")
	ctx := config.UntilSignal()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "warmer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s app.Settings) error {
	log := s.Logger(os.Stderr)
	state.LogLibrary(log)
	inLambda := os.Getenv("AWS_LAMBDA_RUNTIME_API") != ""
	w, err := app.New(s, app.Deps{Drivers: drivers.Remote(log), Machines: drivers.Machines(), Lambda: inLambda, Out: os.Stdout, Log: log})
	if err != nil {
		return err
	}
	defer w.Close()
	if inLambda {
		w.ServeLambda(ctx)
		return nil
	}
	return w.Run(ctx)
}
