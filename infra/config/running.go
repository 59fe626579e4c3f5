package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Running is what `gateway run` writes to its state folder for the other commands on the machine. It contains no
// secret.
type Running struct {
	URL   string `json:"url"`            // of the gateway
	Cert  string `json:"cert,omitempty"` // file with its TLS certificate
	Pool  string `json:"pool"`           //
	Redis string `json:"redis"`          // socket of the embedded Redis, "" for another one
}

const runningFile = "gateway.json" // in the state folder

// SocketURL returns the URL of an embedded Redis. Its timeout is long, because loading engines can occupy all cores of
// the machine.
func SocketURL(socket string) string { return "unix://" + socket + "?read_timeout=1s" }

// ReadRunning reads the file in a state folder. It returns the zero value if there is none.
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

// Write writes r into a state folder; remove deletes it.
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

// RedisFinder is [Redis] for programs that find the Redis of a `gateway run` on the same machine.
type RedisFinder struct {
	RedisURL    string `help:"Redis of the pool. Default: that of the gateway run with this --state-dir, else redis://127.0.0.1:6379/0."`
	RedisSecret string `help:"Secret of AWS Secrets Manager with the user and the password of Redis, in place of those of the URL."`
	Pool        string `help:"Name of the deployment. Default: as the Redis."`
	StateDir    string `help:"State folder of gateway run." default:".reveille"`
}

// Find fills in the missing settings.
func (n RedisFinder) Find() (Redis, error) {
	r := Redis{n.RedisURL, n.RedisSecret, n.Pool}
	if r.RedisURL == "" {
		running, err := ReadRunning(n.StateDir)
		if err != nil {
			return r, err
		}
		r.RedisURL = defaultRedis
		switch {
		case running.Redis != "":
			r.RedisURL = SocketURL(running.Redis)
		case running.URL != "":
			return r, fmt.Errorf("the gateway of %s uses its own Redis: set it with --redis-url", n.StateDir)
		}
		if r.Pool == "" {
			r.Pool = running.Pool
		}
	}
	if r.Pool == "" {
		r.Pool = defaultPool
	}
	return r, nil
}

// Explain adds to an error of Find's Redis how to set another one, if it was neither given nor found.
func (n RedisFinder) Explain(err error) error {
	if running, _ := ReadRunning(n.StateDir); err == nil || n.RedisURL != "" || running.Redis != "" {
		return err
	}
	return fmt.Errorf("%w; %s is not a state folder of a gateway run: set that with --state-dir, or the Redis with --redis-url", err, n.StateDir)
}

// Defaults of [Redis].
const (
	defaultRedis = "redis://127.0.0.1:6379/0"
	defaultPool  = "main"
)
