package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"reveille/infra/term"
)

// Wake is `gateway wake NAME`.
type Wake struct {
	Remote
	Name    string `arg:"" help:"The host."`
	Verbose bool   `help:"Print what the gateway logs about the host meanwhile, such as packets sent, and how long it took."`
}

// Run wakes the host and waits until it is awake.
func (c *Wake) Run(ctx context.Context, out io.Writer) error {
	path := hostPath(c.Name, "wake")
	if !c.Verbose || c.JSON {
		return c.report(ctx, out, path, map[string]any{})
	}
	follow, stop := context.WithCancel(ctx)
	defer stop()
	log, err := c.open(follow, "GET", "/logs/stream?source=gateway&no-history=1", nil)
	if err != nil {
		return err
	}
	defer log.Close()
	screen := term.Writer(out)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if strings.Contains(lines.Text()+" ", " host="+c.Name+" ") {
				fmt.Fprintln(screen, lines.Text())
			}
		}
	}()
	began := time.Now()
	var done outcome
	err = c.call(ctx, "POST", path, map[string]any{}, &done)
	stop()
	<-printed
	if err != nil {
		return err
	}
	done.Message += " after " + time.Since(began).Round(time.Second).String()
	return done.print(out)
}

// Sleep is `gateway sleep NAME`.
type Sleep struct {
	Remote
	Name  string `arg:"" help:"The host."`
	Force bool   `help:"Cut open requests immediately."`
}

// Run unloads the host's models, puts it to sleep and waits until it is off.
func (c *Sleep) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, hostPath(c.Name, "sleep"), map[string]any{"force": c.Force})
}

// Forget is `gateway forget NAME`.
type Forget struct {
	Remote
	Name string `arg:"" help:"The host."`
}

// Run removes the host from the pool.
func (c *Forget) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, hostPath(c.Name, "forget"), map[string]any{})
}

func hostPath(name, verb string) string {
	return "/v1/internal/hosts/" + url.PathEscape(name) + "/" + verb
}
