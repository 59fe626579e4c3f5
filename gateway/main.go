package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"reveille/gateway/app"
	"reveille/gateway/cli"
	"reveille/gateway/keys"
	"reveille/infra/config"
	"reveille/infra/power/drivers"
	"reveille/infra/state"
)

// commands are the program's subcommands.
type commands struct {
	Run           runCmd           `cmd:"" help:"Run everything on this machine: gateway, embedded Redis, a local host, a warmer."`
	Serve         serveCmd         `cmd:"" help:"Run the gateway alone, for a Redis and runners elsewhere."`
	Init          cli.Init         `cmd:"" help:"Look at this machine and write a models file."`
	Check         cli.Check        `cmd:"" help:"Validate a models file and explain it."`
	Schema        cli.Schema       `cmd:"" help:"Print the JSON Schema of models files, for editors."`
	PS            cli.PS           `cmd:"" help:"List hosts, models and the queue of a running gateway."`
	Logs          cli.Logs         `cmd:"" help:"Print the logs of the gateway, its runners and the engines of loaded models."`
	Health        cli.Health       `cmd:"" help:"Exit with status 0 if a gateway serves and reads the pool's state, for health checks."`
	Load          cli.Load         `cmd:"" help:"Load a model and wait until it is ready."`
	Unload        cli.Unload       `cmd:"" help:"Unload a model, or all of them."`
	Pin           cli.Pin          `cmd:"" help:"Keep a model from being chosen to make room."`
	Unpin         cli.Unpin        `cmd:"" help:"Remove a pin."`
	MM            cli.MM           `cmd:"" help:"List what the encoder cache holds in Redis, by model signature."`
	Conversations conversationsCmd `cmd:"" help:"List the saved conversations, and forget them."`
	Wake          cli.Wake         `cmd:"" help:"Wake a host and wait until it is awake."`
	Sleep         cli.Sleep        `cmd:"" help:"Unload a host's models and put it to sleep."`
	Forget        cli.Forget       `cmd:"" help:"Forget a host that is not in the catalog and is asleep or lost."`
	Cost          cli.Cost         `cmd:"" help:"List what a month cost by host, model or API key."`
	Key           keyCmd           `cmd:"" help:"Make, list and revoke API keys."`
}

type runCmd struct{ app.RunSettings }

// Run starts everything.
func (c *runCmd) Run(ctx context.Context, out io.Writer) error {
	return app.Run(ctx, c.RunSettings, logger(c.Log), out)
}

type serveCmd struct{ app.ServeSettings }

// Run starts the front.
func (c *serveCmd) Run(ctx context.Context, _ io.Writer) error {
	log := logger(c.Log)
	return app.Serve(ctx, c.ServeSettings, drivers.Remote(log), log, nil)
}

type keyCmd struct {
	New    newKeyCmd     `cmd:"" default:"1" help:"Make a key and print it with its digest for the keys file."`
	Add    cli.KeyAdd    `cmd:"" help:"Make a key that all gateways of the pool accept, and print it."`
	List   cli.KeyList   `cmd:"" help:"List the keys that were added."`
	Revoke cli.KeyRevoke `cmd:"" help:"Revoke an added key at all gateways."`
}

type conversationsCmd struct {
	List   cli.ConversationsList   `cmd:"" default:"withargs" help:"List what each host keeps, by model."`
	Forget cli.ConversationsForget `cmd:"" help:"Have every host forget a model's conversations, or all: saved ones and those that loaded copies hold."`
}

type newKeyCmd struct{}

// Run prints a fresh key.
func (newKeyCmd) Run(_ context.Context, out io.Writer) error {
	key := keys.New()
	_, err := fmt.Fprintf(out, "%s\n%s infer\n", key, keys.Digest(key))
	return err
}

// logger makes the log of a command that serves, for the Redis library too.
func logger(l config.Log) *slog.Logger {
	log := l.Logger(os.Stderr)
	state.LogLibrary(log)
	return log
}

func main() {
	var c commands
	c.Run.RunnerAddr = "127.0.0.1:0" // of runners in this process, which have no clients elsewhere
	command := config.MustParse(&c, "gateway", "Reveille: a scale-to-zero gateway for the models that you run yourself.")
	if err := command.Run(config.UntilSignal(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}
