// Command standin is a stand-in inference engine for tests about faults and for
// model types of which no small real model exists.
//
// It speaks the HTTP API that the real engines speak (health, chat, completions,
// embeddings, rerank, audio, images) and can be told by flags to misbehave the way
// engines do: load slowly, fail to load, hang, die in the middle of a response, ignore
// SIGTERM, answer garbage, run out of memory. Its answers are a pure function of the
// request, so two processes asked the same say the same; they carry no meaning, unless a message dictates them (dictated.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// grace is how long requests in flight may still take after SIGTERM.
const grace = 5 * time.Second

func main() {
	cfg, err := parse(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(2)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, os.Interrupt)
	go func() {
		for range term {
			if !cfg.IgnoreSigterm {
				stop()
			}
		}
	}()
	if err := run(ctx, cfg, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends or loading fails. Like llama-server, it listens before
// it loads, so that health answers 503 meanwhile.
func run(ctx context.Context, cfg Config, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	ln, err := listen(cfg)
	if err != nil {
		return err
	}
	srv := newServer(cfg, log, killSelf)
	web := &http.Server{Handler: srv.handler(), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	served := make(chan error, 1)
	go func() { served <- web.Serve(ln) }()
	log.Info("listening", "addr", ln.Addr().String())

	err = srv.load(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-served:
		}
	} else if ctx.Err() != nil {
		err = nil // told to stop while loading: an orderly end
	}
	log.Info("stopping")
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if web.Shutdown(end) != nil {
		web.Close()
	}
	return err
}

// listen opens the unix socket or TCP port of cfg. A socket file left by a killed
// process is replaced.
func listen(cfg Config) (net.Listener, error) {
	if strings.HasSuffix(cfg.Host, ".sock") {
		if err := os.Remove(cfg.Host); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("replace socket: %w", err)
		}
		return net.Listen("unix", cfg.Host)
	}
	return net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)))
}

// killSelf ends the process as the kernel's out-of-memory killer would.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // never answer between the signal's sending and its arrival
}
