package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// load plays the loading of a model and makes the server ready. It returns an error if
// this start was told to fail, or ctx's if that ends first.
func (s *server) load(ctx context.Context) error {
	if path := s.cfg.NeedFile; path != "" {
		f, err := os.Open(path)
		if err != nil {
			cause := err
			if e, ok := errors.AsType[*os.PathError](err); ok {
				cause = e.Err
			}
			return fmt.Errorf("gguf_init_from_file: failed to open GGUF file '%s' (%v)", path, cause)
		}
		f.Close()
	}
	start := 0
	if s.cfg.FailLoad > 0 {
		file := s.cfg.StateFile
		if file == "" {
			file = defaultStateFile(s.cfg.Alias)
		}
		var err error
		if start, err = countStart(file); err != nil {
			return fmt.Errorf("count starts: %w", err)
		}
	}
	s.log.Info("loading", "model", s.cfg.Alias, "load_time", s.cfg.LoadTime)
	if s.cfg.Hang == "load" {
		<-ctx.Done()
		return ctx.Err()
	}
	if !sleep(ctx, s.cfg.LoadTime) {
		return ctx.Err()
	}
	if s.cfg.FailLoad < 0 || start > 0 && start <= s.cfg.FailLoad {
		return fmt.Errorf("failed to load model: told to fail (start %d, --fail-load %d)", start, s.cfg.FailLoad)
	}
	s.ready.Store(true)
	s.log.Info("ready", "model", s.cfg.Alias)
	if d := s.cfg.ExitAfter.after; d > 0 {
		time.AfterFunc(d, s.die)
	}
	return nil
}

// sleep waits for d and reports whether it did; false means ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
