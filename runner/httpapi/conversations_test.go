package httpapi_test

import (
	"strings"
	"testing"

	"reveille/infra/rpc"
)

// Saved conversations are for who holds the pool's secret, and the answers say that they come from one.
func TestConversationsAreForRunners(t *testing.T) {
	b := start(t)
	path := rpc.PathConversations + strings.Repeat("ab", 32)
	for _, p := range []string{path, path + "/x?offset=0"} {
		bare := b.request(t.Context(), "GET", p, "", "")
		bare.Header.Del(rpc.HeaderAuth)
		if a := b.do(bare); a.status != rpc.StatusRefused || a.header.Get(rpc.HeaderProof) != "" {
			t.Errorf("without a signature: %+v", a)
		}
		foreign := b.request(t.Context(), "GET", p, "", "")
		foreign.Header.Set(rpc.HeaderAuth, rpc.NewSigner([]byte("another secret than ours")).Sign(rpc.Call{Method: "GET", Path: p, Host: "h"}))
		if a := b.do(foreign); a.status != rpc.StatusRefused {
			t.Errorf("with another secret: %+v", a)
		}
	}
	r := b.request(t.Context(), "GET", path, "", "")
	a := b.do(r)
	if a.status != 200 || a.body != "[]" || !b.signer.Proved(r.Header.Get(rpc.HeaderAuth), a.header.Get(rpc.HeaderProof), []byte(a.body)) {
		t.Errorf("a list: %+v", a)
	}
	if b.signer.Proved(r.Header.Get(rpc.HeaderAuth), a.header.Get(rpc.HeaderProof), []byte("[1]")) || b.signer.Proved("another call", a.header.Get(rpc.HeaderProof), []byte(a.body)) {
		t.Error("the proof fits another answer or call")
	}
	for p, want := range map[string]int{path + "/x?offset=0": 404, path + "/x": 404, rpc.PathConversations: 200, rpc.PathConversations + "zz": 200} {
		if a := b.call("GET", p, "", ""); a.status != want {
			t.Errorf("%s: %+v", p, a)
		}
	}
	if a := b.call("POST", path, "", "{}"); a.status != 405 {
		t.Errorf("POST: %+v", a)
	}
}
