package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"

	"reveille/gateway/api"
	"reveille/gateway/lambda"
	"reveille/infra/catalog"
)

// LambdaSettings are the flags of the gateway as a Lambda function.
type LambdaSettings struct {
	ServeSettings    `embed:""`
	APIKeysSecret    string `name:"api-keys-secret" help:"Secret of AWS Secrets Manager with the lines of --api-keys-file." placeholder:"NAME"`
	RunnerSecretName string `help:"Secret of AWS Secrets Manager with --runner-secret." placeholder:"NAME"`
}

// Bounds of what a function does outside its requests.
const (
	initTime     = 8 * time.Second         // to read what AWS keeps; Lambda allows 10 s until the first event is asked for
	copiesFresh  = 5 * time.Minute         // how old the models file and the API keys may be when a request comes
	beginTime    = 5 * time.Second         // longest that reading them again may delay a request
	lookTime     = 1500 * time.Millisecond // longest wait for a snapshot of the pool before a request
	flushTimeout = 5 * time.Second         // longest that what was begun behind a request may hold its answer's end up
)

var errNoKeys = errors.New("a function URL is open to everybody: API keys are needed (--api-keys-secret, --api-keys-file or --admin-key)")

// ServeLambda runs a gateway behind a Lambda function URL until ctx ends: events come by the Runtime API, whose address is
// in the environment. --models may be an s3:// object. --addr is not listened on.
func ServeLambda(ctx context.Context, s LambdaSettings, drivers Drivers, log *slog.Logger) error {
	if s.APIKeysSecret == "" && s.APIKeysFile == "" && s.AdminKey == "" {
		return errNoKeys
	}
	dir, err := os.MkdirTemp("", "reveille-gateway-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	copies, err := s.fetch(ctx, dir)
	if err != nil {
		return err
	}
	ln := lambda.NewListener()
	listen := func() (net.Listener, error) { return ln, nil }
	return serve(ctx, s.ServeSettings, listen, drivers, log, func(p *parts) {
		g := &lambdaGateway{parts: p, copies: copies, log: log}
		g.warmUp(ctx)
		go lambda.New(ln, g, log).Run(ctx) // ends with the process
	})
}

// fetch reads what the settings name in AWS and sets the settings that stand for it. The copies, in dir, are of what may
// change while the function runs.
func (s *LambdaSettings) fetch(ctx context.Context, dir string) (*lambda.Copies, error) {
	ctx, cancel := context.WithTimeout(ctx, initTime)
	defer cancel()
	config, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	cloud, copies := lambda.NewCloud(config), lambda.NewCopies(dir, copiesFresh)
	if c := catalog.ParseCheckpoint(s.Models); c.Scheme == catalog.SchemeS3 {
		s.Models = copies.Keep("models.yaml", func(ctx context.Context) ([]byte, error) { return cloud.Object(ctx, c.Bucket, c.Path) })
	}
	if id := s.APIKeysSecret; id != "" {
		s.APIKeysFile = copies.Keep("api-keys", func(ctx context.Context) ([]byte, error) { return cloud.Secret(ctx, id) })
	}
	if _, err := copies.Refresh(ctx); err != nil {
		return nil, fmt.Errorf("settings kept in AWS: %w", err)
	}
	if s.RunnerSecretName != "" {
		secret, err := cloud.Secret(ctx, s.RunnerSecretName)
		if err != nil {
			return nil, fmt.Errorf("settings kept in AWS: %w", err)
		}
		s.RunnerSecret = strings.TrimSpace(string(secret))
	}
	return copies, nil
}

// lambdaGateway is a gateway whose process stands still between requests.
type lambdaGateway struct {
	*parts
	copies *lambda.Copies
	log    *slog.Logger
}

// warmUp waits for the pool's state and for its catalogue, while the time is still free.
func (g *lambdaGateway) warmUp(ctx context.Context) {
	for end := time.Now().Add(lookTime); time.Now().Before(end); {
		changed := g.mirror.Changed()
		if g.mirror.Snapshot().Catalog != "" {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Until(end)):
		case <-ctx.Done():
			return
		}
	}
	g.log.Warn("no catalogue in Redis yet")
}

// Begin implements lambda.Gateway: keys, catalogue and the pool as they are now, as far as they can be reached.
func (g *lambdaGateway) Begin(ctx context.Context) {
	g.reread(ctx)
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	for {
		if _, err := g.mirror.Refresh(ctx); err == nil || ctx.Err() != nil || !g.store.Up() {
			return
		}
		time.Sleep(20 * time.Millisecond) // connections that ended during the freeze are found out one by one
	}
}

// reread takes up models file and API keys if they are old.
func (g *lambdaGateway) reread(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	changed, err := g.copies.Refresh(ctx)
	if err != nil {
		g.log.Error("could not read settings from AWS; keeping the previous ones", "error", err)
	}
	if changed {
		g.keys.Reload(g.log)
		g.watcher.Reload()
	}
}

// Flush implements lambda.Gateway: it releases tickets, requests wakes and reports uses.
func (g *lambdaGateway) Flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := g.gate.AwaitIdle(ctx); err != nil {
		g.log.Warn("work for a request is still running; it continues at the next invocation", "error", err)
	}
	_ = g.usage.Flush(ctx) // kept for the next request, and the store's breaker has said so
}

// Cut implements lambda.Gateway.
func (g *lambdaGateway) Cut() {
	g.front.Cut(api.New(api.UpstreamTimeout, "The answer takes longer than this gateway, a Lambda function, may run."))
}
