package engine

import (
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/logring"
	"reveille/infra/recipe"
)

// watched is what an owner knows of the process pid, which loads with the times that recipes have by default.
func watched(pid int) *Process {
	return &Process{
		pid: pid, started: time.Now(), cfg: Config{Logger: slog.New(slog.DiscardHandler)}, log: logring.New(1),
		stop: make(chan struct{}), kill: make(chan struct{}), ready: make(chan struct{}), stuck: make(chan struct{}),
	}
}

// A load may take 300 s, and 60 s without progress (fault 10). In virtual time.
func TestLoadTimeoutsFollowTheClock(t *testing.T) {
	for _, c := range []struct {
		name     string
		progress time.Duration // between two signs of it; 0 none
		until    time.Duration // the last one
		want     time.Duration
		detail   string
	}{
		{"no sign of life", 0, 0, 60 * time.Second, "no progress for 1m0s"},
		{"progress that ends", 59 * time.Second, 2 * 59 * time.Second, 178 * time.Second, "no progress for 1m0s"},
		{"progress without end", 59 * time.Second, time.Hour, 300 * time.Second, "not ready after 5m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, ended := watched(0), make(chan struct{})
			if c.progress > 0 {
				go func() {
					for range c.until / c.progress {
						select {
						case <-time.After(c.progress):
							p.touch()
						case <-ended:
							return
						}
					}
				}()
			}
			err := p.awaitReady(ended, newReader(p))
			took := time.Since(p.started)
			close(ended)
			var e *LoadError
			if !errors.As(err, &e) || !errors.Is(err, ErrLoadTimeout) || e.Detail != c.detail || took != c.want {
				t.Errorf("%s: %v after %v, want %q after %v", c.name, err, took, c.detail, c.want)
			}
		})
	}
}

// An engine that does not listen to SIGTERM is killed 10 s after it (fault 10). In virtual time, but for the engine.
func TestGraceFollowsTheClock(t *testing.T) {
	engine := start(t, testSpec("-ignore-term"), testConfig(t))
	if err := engine.EnsureReady(within(t)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p, ended := watched(engine.PID()), make(chan struct{})
		go p.terminate(ended)
		time.Sleep(recipe.DefaultStopGrace - time.Nanosecond)
		synctest.Wait()
		if !alive(engine.PID()) {
			t.Error("killed before its grace was over")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		close(ended)
	})
	<-engine.Done()
	var e *ExitError
	if !errors.As(engine.Err(), &e) || e.Signal != syscall.SIGKILL {
		t.Errorf("it ended with %v, want SIGKILL", engine.Err())
	}
}
