package page

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// Hosts are shown as they wake and after their runner was killed, the head of a queue with what it waits for, and the log of
// a runner in a process of its own.
func TestHostStates(t *testing.T) {
	chromium(t)
	const secret, owner = "a secret of sixteen or more", "rv_a-key-that-may-do-anything"
	models := calls.Catalogue{"long": "llm, hosts: [near], " + calls.Options("--token-delay 100ms --tokens 100000"), "next": "llm, hosts: [near]", "away": "llm, hosts: [far]"}
	hosts := "hosts:\n  near: {driver: wol, mac: \"02:00:00:00:00:01\", devices: [cpu]}\n  far: {driver: exec, devices: [cpu], commands: {wake: [\"true\"], sleep: [\"true\"], state: [\"true\"]}}\n"
	redis := testenv.StartRedis(t)
	url := "redis://" + redis.Addr
	gateway := testenv.StartGateway(t, url, secret, models.YAML(hosts), "--admin-key", owner)
	runner, _ := testenv.StartRunner(t, url, secret, "near", t.TempDir(), "--devices=cpu", "--max-loaded-models=1")
	b := browse(t, gateway.URL+"/ui")
	b.provokes("401")
	b.is("document.querySelector('#login').open && (document.querySelector('#login-key').value = '" + owner + "', true)")
	b.press("#login-form button[type=submit]")
	b.reads("near ready")

	// Requests that wait: for a busy model, and for a host that wakes.
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer leave()
	ask := func(model string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", gateway.URL+"/v1/chat/completions", strings.NewReader(calls.ChatBody(model, 100000, true)))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+owner)
		return http.DefaultClient.Do(req)
	}
	wait := func(model string) {
		waiting.Go(func() {
			if resp, err := ask(model); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	resp, err := ask("long")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b.reads("long next out, once idle busy, 1 request")
	wait("next")
	b.reads("waits until long has finished its open requests (1)")
	wait("away")
	b.is("/waking, \\d+ s/.test(document.querySelector('.card.waking .state')?.textContent)")
	b.reads("its host is waking")
	b.pictures("pool-waking")

	b.press("nav a[href='#logs']")
	b.reads("[runner near] time=")
	runner.Kill()
	b.press("nav a[href='#pool']")
	b.is("/lost for \\d+ s/.test(document.querySelector('.card.lost .state')?.textContent)")
	b.reads("long was loaded")
	b.reads("models loaded 0")
	b.reads("long Language unloaded")
	b.pictures("pool-lost")
}
