package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"reveille/infra/catalog"
)

const (
	progressAfter = 500 * time.Millisecond // what is done by then needs no word
	progressEvery = time.Second
)

// progress prints a line whenever what look tells changes, until the returned function is called, which waits for the
// last word. With JSON, or nothing to look at, it is silent.
func (r Remote) progress(ctx context.Context, out io.Writer, look func(context.Context) string) (end func()) {
	if r.JSON || look == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		began, told := time.Now(), ""
		for wait := progressAfter; ; wait = progressEvery {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if now := look(ctx); now != "" && now != told && ctx.Err() == nil {
				fmt.Fprintf(out, "%6.1f s  %s\n", time.Since(began).Seconds(), now)
				told = now
			}
		}
	}()
	return func() { cancel(); <-done }
}

// modelState looks how far a model's load is; "" when the gateway does not say.
func (r Remote) modelState(name string) func(context.Context) string {
	return func(ctx context.Context) string {
		var m struct {
			Status struct {
				State    string `json:"value"`
				Host     string
				Position int
				ETA      float64
				Done     int64 `json:"bytes_done"`
				Total    int64 `json:"bytes_total"`
			}
		}
		if r.call(ctx, "GET", "/v1/models/"+url.PathEscape(name), nil, &m) != nil || m.Status.State == "" {
			return ""
		}
		s := m.Status
		line := s.State
		if s.Host != "" {
			line += " on " + s.Host
		}
		if s.Position > 0 {
			line += fmt.Sprintf(", position %d", s.Position)
		}
		if s.Total > 0 {
			line += fmt.Sprintf(", %s of %s", catalog.FormatSize(s.Done), catalog.FormatSize(s.Total))
		}
		if s.ETA > 0 {
			line += fmt.Sprintf(", about %.0f s more", s.ETA)
		}
		return line
	}
}

// hostState looks at a host's state; "" when the gateway does not say.
func (r Remote) hostState(name string) func(context.Context) string {
	return func(ctx context.Context) string {
		var h health
		if r.call(ctx, "GET", "/v1/health", nil, &h) != nil {
			return ""
		}
		for _, host := range h.Runners {
			if host.ID == name {
				return name + " is " + host.State
			}
		}
		return ""
	}
}
