package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/term"
)

const conversationsPath = "/v1/internal/conversations"

// ConversationsList is `gateway conversations`.
type ConversationsList struct {
	Remote `embed:""`
}

// Run lists the saved conversations of each model and host.
func (c *ConversationsList) Run(ctx context.Context, out io.Writer) error {
	var raw json.RawMessage
	if err := c.call(ctx, "GET", conversationsPath, nil, &raw); err != nil {
		return err
	}
	if c.JSON {
		return print(out, raw)
	}
	var list struct {
		Conversations []struct {
			Runner         string `json:"runner"`
			Model          string `json:"model_name"`
			Conversations  int    `json:"conversations"`
			Tokens, Bytes  int64
			Oldest, Newest float64
		}
		Unreached []string `json:"hosts_unreached"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	w := term.Table(out)
	fmt.Fprintln(w, "MODEL\tHOST\tCONVERSATIONS\tTOKENS\tSIZE\tNEWEST\tOLDEST")
	for _, k := range list.Conversations {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", k.Model, k.Runner, k.Conversations, k.Tokens, catalog.FormatSize(k.Bytes), seconds(k.Newest), seconds(k.Oldest))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return unreached(out, list.Unreached)
}

// ConversationsForget is `gateway conversations forget MODEL|all`.
type ConversationsForget struct {
	Remote `embed:""`
	Model  string `arg:"" help:"The model, or all."`
}

// Run has the hosts remove what they saved.
func (c *ConversationsForget) Run(ctx context.Context, out io.Writer) error {
	path := conversationsPath
	if c.Model != "all" {
		path += "/" + url.PathEscape(c.Model)
	}
	var raw json.RawMessage
	if err := c.call(ctx, "DELETE", path, nil, &raw); err != nil {
		return err
	}
	if c.JSON {
		return print(out, raw)
	}
	var done struct {
		Forgotten int
		Unreached []string `json:"hosts_unreached"`
	}
	if err := json.Unmarshal(raw, &done); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d conversations are forgotten\n", done.Forgotten)
	return unreached(out, done.Unreached)
}

func unreached(out io.Writer, hosts []string) error {
	if len(hosts) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "Not reached: %s\n", strings.Join(hosts, ", "))
	return err
}

// seconds is an age as people say it.
func seconds(n float64) string { return (time.Duration(n) * time.Second).String() + " ago" }
