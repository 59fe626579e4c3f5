package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/url"
	"strings"

	"reveille/infra/term"
)

// Logs is `gateway logs`.
type Logs struct {
	Remote
	Source []string `arg:"" optional:"" help:"One log: gateway, runner HOST, or MODEL on HOST. Default: all."`
	Follow bool     `short:"f" help:"Print new lines as well, until Ctrl-C; each line starts with its source."`
}

// Run prints the logs as the gateway keeps them.
func (c *Logs) Run(ctx context.Context, out io.Writer) error {
	if c.JSON {
		return errors.New("--json: logs are text")
	}
	path := "/logs"
	if c.Follow {
		path += "/stream"
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	if len(c.Source) > 0 {
		path += "?" + url.Values{"source": {strings.Join(c.Source, " ")}}.Encode()
	}
	body, err := c.open(ctx, "GET", path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	screen := term.Writer(out)
	for lines := bufio.NewReader(body); ; {
		line, err := lines.ReadBytes('\n')
		if _, e := screen.Write(line); e != nil {
			return e
		}
		switch {
		case err == io.EOF, c.Follow && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}
