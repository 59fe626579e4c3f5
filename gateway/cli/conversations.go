package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"reveille/gateway/manage"
	"reveille/infra/catalog"
	"reveille/infra/term"
)

const conversationsPath = "/v1/internal/conversations"

// ConversationsList is `gateway conversations`.
type ConversationsList struct {
	Remote
}

// Run lists the saved conversations of each model and host.
func (c *ConversationsList) Run(ctx context.Context, out io.Writer) error {
	var list manage.ConversationList
	if printed, err := c.show(ctx, out, "GET", conversationsPath, nil, &list); printed || err != nil {
		return err
	}
	w := term.Table(out)
	fmt.Fprintln(w, "MODEL\tHOST\tCONVERSATIONS\tTOKENS\tSIZE\tNEWEST\tOLDEST")
	for _, k := range list.Conversations {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", k.Model, k.Runner, k.Conversations, k.Tokens, catalog.FormatSize(k.Bytes), seconds(k.Newest), seconds(k.Oldest))
	}
	if err := w.Flush(); err != nil || len(list.Unreached) == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "Not reached: %s\n", strings.Join(list.Unreached, ", "))
	return err
}

// ConversationsForget is `gateway conversations forget MODEL|all`.
type ConversationsForget struct {
	Remote
	Model string `arg:"" help:"The model, or all."`
}

// errNotForgotten: a host that is awake has not forgotten everything.
var errNotForgotten = errors.New("not everything is forgotten yet")

// Run has the pool forget a model's conversations, and says what each host did. It fails if a host that is awake has
// not done all of it.
func (c *ConversationsForget) Run(ctx context.Context, out io.Writer) error {
	path := conversationsPath
	if c.Model != "all" {
		path += "/" + url.PathEscape(c.Model)
	}
	var done manage.ForgetResponse
	printed, err := c.show(ctx, out, "DELETE", path, nil, &done)
	if err != nil {
		return err
	}
	if !printed {
		for _, h := range done.Hosts {
			text := fmt.Sprintf("%s forgotten", Count(h.Conversations, "saved conversation"))
			if h.Copies > 0 {
				text += fmt.Sprintf(", %s unloaded", Count(h.Copies, "loaded copy"))
			}
			if h.Requests > 0 {
				text += fmt.Sprintf(" after %s", Count(h.Requests, "open request"))
			}
			switch h.State {
			case "asleep":
				text = "asleep, forgets when it wakes"
			case "unreached":
				text = "not reached, forgets when it reads the pool's state"
			case "partly":
				text += "; some could not be removed, see the runner's log"
			}
			fmt.Fprintf(out, "%s: %s\n", h.Runner, text)
		}
	}
	if done.Status != "success" {
		return errNotForgotten
	}
	return nil
}

// Count is a number of things as people say it.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if word, is := strings.CutSuffix(thing, "y"); is {
		return fmt.Sprintf("%d %sies", n, word)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// seconds is an age as people say it.
func seconds(n float64) string { return (time.Duration(n) * time.Second).String() + " ago" }
