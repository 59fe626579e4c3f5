package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Running is what a gateway run notes in its state folder for the commands beside it. It holds no secret.
type Running struct {
	URL   string `json:"url"`   // of the gateway
	Pool  string `json:"pool"`  //
	Redis string `json:"redis"` // socket of the embedded Redis, "" for another one
}

const runningFile = "gateway.json" // in the state folder

// SocketURL is the URL of an embedded Redis. Engines that load may keep every core of a machine busy, and it waits with
// them.
func SocketURL(socket string) string { return "unix://" + socket + "?read_timeout=1s" }

// ReadRunning returns the note in a state folder, the zero value where there is none.
func ReadRunning(stateDir string) (r Running, err error) {
	data, err := os.ReadFile(filepath.Join(stateDir, runningFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return Running{}, fmt.Errorf("state folder %s: %s: %w", stateDir, runningFile, err)
	}
	return r, nil
}

// Write writes r into a state folder; remove takes it out again.
func (r Running) Write(stateDir string) (remove func(), err error) {
	path := filepath.Join(stateDir, runningFile)
	data, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(path, append(data, '\n'), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil
}

// RedisFinder is [Redis] for programs that find the one of a gateway run beside them.
type RedisFinder struct {
	RedisURL    string `help:"Redis of the pool. Default: that of the gateway run with this --state-dir, else redis://127.0.0.1:6379/0."`
	RedisSecret string `help:"Secret of AWS Secrets Manager with the user and the password of Redis, in place of those of the URL."`
	Pool        string `help:"Name of the deployment. Default: as the Redis."`
	StateDir    string `help:"State folder of gateway run." default:".reveille"`
}

// Find fills in what was not given.
func (n RedisFinder) Find() (Redis, error) {
	r := Redis{n.RedisURL, n.RedisSecret, n.Pool}
	if r.RedisURL == "" {
		near, err := ReadRunning(n.StateDir)
		if err != nil {
			return r, err
		}
		r.RedisURL = defaultRedis
		switch {
		case near.Redis != "":
			r.RedisURL = SocketURL(near.Redis)
		case near.URL != "":
			return r, fmt.Errorf("the gateway of %s has a Redis of its own: name it with --redis-url", n.StateDir)
		}
		if r.Pool == "" {
			r.Pool = near.Pool
		}
	}
	if r.Pool == "" {
		r.Pool = defaultPool
	}
	return r, nil
}

// Explain adds to an error of the Redis that Find returned how to name another one, if it is neither given nor found.
func (n RedisFinder) Explain(err error) error {
	if near, _ := ReadRunning(n.StateDir); err == nil || n.RedisURL != "" || near.Redis != "" {
		return err
	}
	return fmt.Errorf("%w; %s is no state folder of a gateway run: name that with --state-dir, or the Redis with --redis-url", err, n.StateDir)
}

// Defaults of [Redis].
const (
	defaultRedis = "redis://127.0.0.1:6379/0"
	defaultPool  = "main"
)
