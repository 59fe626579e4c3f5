package devices

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// Command runs the programs that [Detect] calls.
type Command struct {
	Limit time.Duration                 // time for each; 0 is 10 s
	Env   func(program string) []string // environment of a program; nil passes on this process's
}

// maxOutput is the maximum of a program's output that is read, in bytes.
const maxOutput = 1 << 20

// Run returns the first MiB of a program's standard output, even if the program fails. An exec.ExitError has the first
// MiB of its standard error. Run returns within the limit
// and a second. A program that survives SIGKILL, such as nvidia-smi while its driver hangs, is left behind.
func (c Command) Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	limit := c.Limit
	if limit <= 0 {
		limit = 10 * time.Second // eight GPUs without a persistent driver take that long
	}
	program, err := exec.LookPath(program)
	if err != nil {
		return nil, errors.New("not installed")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("does not exit within %v", limit))
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		if c.Env != nil {
			cmd.Env = c.Env(program)
		}
		var out, errs outputHead
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errs, time.Second/2
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			exit.Stderr = errs.kept
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		done <- result{out.kept, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-time.After(limit + time.Second):
		return nil, context.Cause(ctx)
	}
}

// outputHead keeps the first maxOutput bytes written to it.
type outputHead struct{ kept []byte }

func (h *outputHead) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxOutput-len(h.kept))]...)
	return len(p), nil
}
