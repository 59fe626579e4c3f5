package sleep

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// With two copies loaded, all turns of a conversation go to the same one, other conversations to the other one, too. A conversation that
// everybody asks about at once gets no copy more than 1.25 times the mean of the open requests.
func TestConversationsStayWithTheirCopy(t *testing.T) {
	t.Parallel()
	s, rdb, _ := system(t, twoHosts, "--idle=1h", "--host-idle=1h", "--runner-addr=127.0.0.1:0")
	c := client(t)
	body := func(tokens int, stream bool, turns ...string) string {
		var talk strings.Builder
		for i, text := range turns {
			fmt.Fprintf(&talk, `,{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], text)
		}
		return fmt.Sprintf(`{"model":"m","stream":%v,"max_tokens":%d,"messages":[{"role":"system","content":"Be brief."}%s]}`, stream, tokens, &talk)
	}
	crowd, leave := context.WithCancel(t.Context())
	defer leave()
	over := make(chan struct{}, 8)
	for range cap(over) {
		go func() {
			for crowd.Err() == nil {
				chat(crowd, c, s.URL, "m", true)
			}
			over <- struct{}{}
		}()
	}
	for _, host := range []string{"h0", "h1"} {
		kit.Becomes(t, "the model on "+host, "loaded", func() string { return rdb.HGet(t.Context(), "rv:{main}:model:"+host+":m", "state").Val() })
	}
	leave()
	for range cap(over) {
		<-over
	}
	idle := func() { // and the gateway has seen it: an own request that ended counts as another gateway's until then
		t.Helper()
		for _, host := range []string{"h0", "h1"} {
			kit.Becomes(t, "open requests on "+host, "0", func() string { return rdb.HGet(t.Context(), "rv:{main}:model:"+host+":m", "in_flight").Val() })
		}
		if a := calls.Get(t.Context(), c, s.URL+"/running"); !a.OK() {
			t.Fatal(a)
		}
	}
	idle()

	at := map[string]int{}
	for i := range 6 {
		talk := []string{fmt.Sprintf("What about river %d?", i)}
		first := ""
		for turn := range 3 {
			a := calls.Post(t.Context(), c, s.URL+"/v1/chat/completions", body(1, false, talk...))
			host := a.Header.Get("X-Runner")
			if !a.OK() || turn > 0 && host != first {
				t.Errorf("turn %d of conversation %d, which began on %s: %v on %s", turn, i, first, a, host)
			}
			first = host
			talk = append(talk, "It rose.", "And then?")
		}
		at[first]++
	}
	if len(at) != 2 {
		t.Errorf("all conversations are on %v", at)
	}

	idle()
	open, end := context.WithCancel(t.Context())
	defer end()
	at = map[string]int{}
	const requests = 10
	for range requests {
		req, err := http.NewRequestWithContext(open, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(body(60, true, "What about river 1?")))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		at[resp.Header.Get("X-Runner")]++
		for host, n := range at {
			sum := 0
			for _, n := range at {
				sum += n
			}
			if most := (5*sum + 7) / 8; n > most {
				t.Errorf("%s has %d of %d open requests, at most %d are 1.25 of the mean", host, n, sum, most)
			}
		}
	}
	if most := max(at["h0"], at["h1"]); most != 7 { // of a mean of 5, rounded up: and no less, since all prefer one
		t.Errorf("the open requests are on %v", at)
	}
}
