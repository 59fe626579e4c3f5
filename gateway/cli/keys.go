package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"reveille/gateway/keys"
	"reveille/infra/term"
)

// KeyAdd is `gateway key add NAME`.
type KeyAdd struct {
	Remote
	Name string `arg:"" optional:"" help:"Name for people."`

	Scopes   string        `help:"What the key may do: infer, manage, or infer,manage." default:"infer"`
	Models   []string      `help:"The only models that it may use, by id; * stands for any text."`
	Cloud    bool          `help:"It may use models with cloud: true, whose requests leave the owner's machines."`
	Requests string        `help:"Requests per time, such as 60/m."`
	Tokens   string        `help:"Token rate of prompts and responses, such as 100000/m."`
	Loads    string        `help:"Loads of models that its requests start, such as 20/h."`
	Budget   int64         `help:"Total tokens of prompts and responses; after that the key is refused."`
	Open     int           `help:"Requests at one time."`
	Waiting  int           `help:"Requests that wait for models, at each gateway."`
	Priority string        `help:"Its priority: high lets it send x-priority: high; with low or background, all its requests have that."`
	For      time.Duration `help:"Time until it expires, such as 720h."`
}

// grant is what the key may do, as in a line of the keys file.
func (c *KeyAdd) grant(now time.Time) string {
	words := []string{c.Scopes}
	add := func(name, value string) {
		if value != "" && value != "0" {
			words = append(words, name+"="+value)
		}
	}
	add("models", strings.Join(c.Models, ","))
	add("requests", c.Requests)
	add("tokens", c.Tokens)
	add("loads", c.Loads)
	add("budget", fmt.Sprint(c.Budget))
	add("open", fmt.Sprint(c.Open))
	add("waiting", fmt.Sprint(c.Waiting))
	add("priority", c.Priority)
	if c.Cloud {
		add("cloud", "yes")
	}
	if c.For > 0 {
		add("expires", now.Add(c.For).UTC().Format(time.RFC3339))
	}
	return strings.Join(append(words, c.Name), " ")
}

// Run makes a key here and has the gateway keep its digest. The key is printed once, and nobody can read it later.
func (c *KeyAdd) Run(ctx context.Context, out io.Writer) error {
	key := keys.New()
	var added keys.Entry
	if err := c.call(ctx, "POST", "/internal/keys", map[string]string{"digest": keys.Digest(key), "grant": c.grant(time.Now())}, &added); err != nil {
		return err
	}
	if c.JSON {
		return print(out, struct {
			Key string `json:"key"`
			keys.Entry
		}{key, added})
	}
	_, err := fmt.Fprintf(out, "%s\nid %s: %s\n", key, added.ID, added.Grant)
	return err
}

// KeyList is `gateway key list`.
type KeyList struct {
	Remote
}

// Run lists the keys in Redis.
func (c *KeyList) Run(ctx context.Context, out io.Writer) error {
	var got struct {
		Keys []keys.Entry `json:"keys"`
	}
	if printed, err := c.show(ctx, out, "GET", "/internal/keys", nil, &got); printed || err != nil {
		return err
	}
	t := term.Table(out)
	fmt.Fprintln(t, "ID\tSTATE\tGRANT")
	for _, k := range got.Keys {
		state := "valid"
		switch {
		case k.Revoked:
			state = "revoked"
		case k.Expired:
			state = "expired"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", k.ID, state, k.Grant)
	}
	return t.Flush()
}

// KeyRevoke is `gateway key revoke ID`.
type KeyRevoke struct {
	Remote
	ID string `arg:"" help:"The key's id, or its name if that is unique."`
}

// Run revokes a key.
func (c *KeyRevoke) Run(ctx context.Context, out io.Writer) error {
	var revoked keys.Entry
	printed, err := c.show(ctx, out, "DELETE", "/internal/keys/"+url.PathEscape(c.ID), nil, &revoked)
	if printed || err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s is revoked; gateways refuse it within seconds\n", revoked.ID)
	return err
}
