package httpapi_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"reveille/runner/httpapi"
	"reveille/testenv/kit"
)

// spin starts a process that keeps a core busy for as long as the test runs.
func spin(t *testing.T) (pid int) {
	c := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Wait() }) // the context ends before
	return c.Process.Pid
}

// hold limits a process to a share of a core on average, as a busy machine would.
func hold(t *testing.T, pid int, share float64) {
	began := time.Now()
	var work sync.WaitGroup
	work.Go(func() {
		for ; t.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
			p, err := process.NewProcess(int32(pid))
			if err != nil {
				return
			}
			used, err := p.Times()
			if err != nil {
				return
			}
			signal := syscall.SIGSTOP
			if used.User+used.System < share*time.Since(began).Seconds() {
				signal = syscall.SIGCONT
			}
			_ = syscall.Kill(pid, signal)
		}
	})
	t.Cleanup(work.Wait) // before that of spin, until which the pid is nobody else's
}

// An engine that computes outside its loop for nobody is ended. One that computes for its slots, answers others, or
// rests is not.
func TestStrayThread(t *testing.T) {
	const idle, working = `[{"id":0,"is_processing":false},{"id":1,"is_processing":false}]`, `[{"is_processing":false},{"is_processing":true}]`
	for name, c := range map[string]struct {
		slots    string
		computes bool
		share    float64 // of a core that it gets, 0 for all that there is
		answers  bool    // others, all the time
		ended    bool
	}{
		"stray":              {slots: idle, computes: true, ended: true},
		"on a busy machine":  {slots: idle, computes: true, share: 0.2, ended: true},
		"for a slot":         {slots: working, computes: true},
		"for others":         {slots: idle, computes: true, answers: true},
		"rests":              {slots: idle},
		"says other things":  {slots: `{"is_processing":false}`, computes: true},
		"says it of no slot": {slots: `[{"id":0}]`, computes: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			firstByte := time.Minute // an engine that is not to be ended needs one second in fifteen that tells
			if c.ended {
				firstByte = 100 * time.Millisecond
			}
			b := start(t, func(c *httpapi.Config) { c.FirstByte = firstByte })
			b.load("text")
			f := b.engines.fakes[0]
			f.loop = "/slots"
			if c.computes {
				pid := spin(t)
				f.pid.Store(int64(pid))
				if c.share > 0 {
					hold(t, pid, c.share)
				}
			}
			b.engines.handle = func(conn net.Conn, r *http.Request) {
				if r.URL.Path == "/slots" {
					_, _ = io.WriteString(conn, sized("application/json", c.slots))
					return
				}
				_, _ = io.WriteString(conn, sized("application/json", "{}"))
			}
			if c.answers {
				chatter, stop := context.WithCancel(t.Context())
				var talk sync.WaitGroup
				talk.Go(func() {
					for chatter.Err() == nil {
						b.call("POST", "/tokenize", "text", "{}")
					}
				})
				defer talk.Wait()
				defer stop()
			}
			if c.ended {
				kit.Eventually(t, "the end of the engine", func() bool { return b.checked("text") })
				return
			}
			if b.checked("text") {
				t.Error("the engine was ended")
			}
		})
	}
}
