package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
)

const topView = `{"hosts":[{"name":"box","state":"ready","devices":[{"name":"gpu","used":3221225472,"budget":8589934592}],"seats":[{"of":1,"by":["seated"]}],` +
	`"types":[{"type":"llm","limit":2,"victim":"old","models":[{"id":"old","state":"loaded","used":1000,"memory":1073741824,"device":"gpu"},{"id":"seated","state":"loaded","used":60000,"busy":true,"pinned":true,"requests":2,"device":"npu"}]}]}],` +
	`"queue":[{"model":"\u001b[2Jnew","kind":"load","host":"box","state":"queued","waiting":3,"since":59000,"eta":4,"why":"waits until old has stopped"}],"waiting":3,"more":1}`

// The screen shows hosts, models and the queue of the newest view, without control characters of names, and keeps what
// it showed while the stream is broken.
func TestTop(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ui/stream" || r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, `{"error":{"message":"Not with that key."}}`, http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, ": ping\n\nevent: models\ndata: {\"at\":1,\"view\":[]}\n\nevent: pool\ndata: {\"at\":61000,\"view\":%s}\n\n", topView)
	}))
	defer gateway.Close()
	c := Top{Remote{URL: gateway.URL, APIKey: "k"}}
	var screen tea.Model = topScreen{gateway: "http://gw"}
	screen, _ = screen.Update(tea.WindowSizeMsg{Width: 100, Height: 20})
	if got, want := screen.View().Content, "http://gw: connecting\nq quits, arrows scroll"; got != want {
		t.Errorf("before the first view it shows %q, want %q", got, want)
	}
	screen, _ = screen.Update(errors.New("no gateway answers"))
	if got, want := screen.View().Content, "no gateway answers\nq quits, arrows scroll"; got != want {
		t.Errorf("without a gateway it shows %q, want %q", got, want)
	}
	err := c.follow(t.Context(), func(e poolEvent) error { screen, _ = screen.Update(e); return nil })
	if err == nil || !strings.Contains(err.Error(), "ended the stream") {
		t.Error(err)
	}
	want := []string{
		"3 requests wait", "box ready gpu 3 GiB of 8 GiB", "old llm box loaded 0 1m0s 1 GiB next out", "seated llm box loaded 2 1s - busy, pinned, holds the NPU",
		"load [2Jnew box queued 3 2s 4 s waits until old has stopped", "1 more are not shown", "q quits",
	}
	shows := func(want ...string) {
		t.Helper()
		got := screen.View().Content
		if strings.Contains(got, "\x1b") {
			t.Errorf("%q obeys a name", got)
		}
		words := strings.Join(strings.Fields(got), " ")
		for _, w := range want {
			if !strings.Contains(words, w) {
				t.Errorf("no %q in\n%s", w, got)
			}
		}
	}
	shows(want...)
	screen, _ = screen.Update(errors.New("connection refused"))
	shows("connection refused", "old llm box loaded")

	screen, _ = screen.Update(tea.WindowSizeMsg{Width: 12, Height: 3})
	for range 50 {
		screen, _ = screen.Update(tea.KeyPressMsg{Code: tea.KeyDown})
	}
	lines := strings.Split(screen.View().Content, "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "1 more are") {
		t.Errorf("a small window scrolled to its end shows %q", lines)
	}
	for _, l := range lines {
		if len(l) > 12 {
			t.Errorf("%q is wider than the window", l)
		}
	}
	if _, cmd := screen.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil {
		t.Error("q does not quit")
	}

	var out bytes.Buffer
	c.JSON = true
	if err := c.Run(t.Context(), &out); err == nil || !strings.HasPrefix(out.String(), `{"hosts":[{"name":"box"`) {
		t.Errorf("%v, %s", err, out.String())
	}
	c.APIKey = "other"
	if err := c.Run(t.Context(), &out); err == nil || err.Error() != "Not with that key." {
		t.Error(err)
	}
}
