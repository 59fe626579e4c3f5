package config

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// UntilSignal returns a context that ends with the first SIGINT or SIGTERM; the second exits the process immediately.
// Only main may call it. Both count in background jobs of scripts, too: their shell starts them with SIGINT ignored,
// and a signal whose handler is taken back would be ignored again.
func UntilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		second := (<-signals).(syscall.Signal)
		os.Exit(128 + int(second))
	}()
	return ctx
}
