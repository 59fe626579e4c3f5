package page

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"reveille/testenv"
	"reveille/testenv/calls"
)

const slow = "--token-delay 20ms --tokens 60 --load-time 2s"

// Every view shows a system in which models are swapped and the host sleeps and wakes, by the page's own buttons.
func TestViews(t *testing.T) {
	chromium(t)
	models := calls.Catalogue{
		"chat": "llm, memory: 2GiB, description: The first, " + calls.Options(slow), "other": "llm, memory: 3GiB, " + calls.Options(slow),
		"seated": "embedding, device: npu", "plain": "embedding", "ranker": "reranking",
	}
	s := testenv.Start(t, testenv.Spec{
		Models: models.YAML("hosts:\n  local: {driver: local, devices: [cpu, npu], price: 0.5, memory: {cpu: 8GiB}}\n"),
		Args:   []string{"--max-loaded-models", "1 2 1"},
	})
	b := browse(t, s.URL)
	b.is("location.pathname === '/ui'")
	b.reads("local ready")

	// A swap, with a request that waits.
	b.press("button[data-do=load][data-model=seated]")
	b.reads("NPU seat held by seated")
	b.press("nav a[href='#playground']")
	b.is("document.querySelector('#play-model')?.options.length === 5")
	b.do(chromedp.SetValue(chromedp.CSS("#play-model"), "other"))
	b.is("(document.querySelector('#play-model').dispatchEvent(new Event('change')), true)")
	b.do(chromedp.SendKeys(chromedp.CSS("#play-text"), "Say <b>hello</b>"))
	b.press("#play-go")
	b.press("nav a[href='#pool']")
	b.reads("its engine is starting")
	b.is("document.querySelector('.slot.loading .who') !== null && document.querySelector('.slot.loading .tag.out') === null")
	b.pictures("pool-loading")
	b.reads("next out")
	b.press("button[data-do=load][data-model=chat]")
	b.is("document.querySelector('button[data-do=load][data-model=other]') !== null && document.querySelector('button[data-do=unload][data-model=chat]') !== null")
	b.press("button[data-do=pin][data-model=chat]")
	b.reads("all pinned chat pinned")
	b.press("button[data-do=unpin][data-model=chat]")
	b.sees("pool", "next out")

	// The playground.
	b.press("nav a[href='#playground']")
	choose := func(model string) {
		t.Helper()
		b.is(fmt.Sprintf("(() => { const l = document.querySelector('#play-model'); l.value = %q; l.dispatchEvent(new Event('change')); return l.value === %q })()", model, model))
	}
	choose("plain")
	b.press("#play-go")
	b.reads("Cosine similarity")
	b.reads("· loaded in ")
	b.pictures("playground-embeddings")
	choose("ranker")
	b.press("#play-go")
	b.reads("3 documents")
	b.is("/loaded in \\d+ ms .*on local/.test(document.querySelector('#play-out .stats').textContent)")
	choose("chat")
	b.do(chromedp.SendKeys(chromedp.CSS("#play-text"), "Say <b>hello</b>"))
	b.press("#play-go")
	b.reads("tokens/s")
	b.reads("Say <b>hello</b>")
	b.is("document.querySelector('.turn.assistant .text[aria-busy]') === null")
	b.pictures("playground")
	b.press("#play-curl")
	b.is("document.querySelector('#code-text').textContent.startsWith('curl -sN " + s.URL + "/v1/chat/completions')")
	b.is("JSON.parse(document.querySelector('#code-text').textContent.split(\"-d '\")[1].slice(0, -1)).messages.map(m => m.content).join() === 'Say <b>hello</b>'")
	b.pictures("code")
	b.press("#code-close")
	b.press("#play-clear")
	b.is("document.querySelector('#play-out').childElementCount === 0")
	b.press("#play-go")
	b.is("document.querySelector('#play-text:invalid') !== null && document.querySelector('#play-out').childElementCount === 0")

	// Logs need the admin key.
	b.press("nav a[href='#logs']")
	b.reads("need the key of this machine")
	b.pictures("logs-without-key")
	b.press("main button[data-do=login]")
	b.do(chromedp.SendKeys(chromedp.CSS("#login-key"), s.AdminKey()))
	b.press("#login-form button[type=submit]")
	b.reads("[chat on local]")
	b.reads("[gateway] time=")
	b.reads("[runner local] time=")
	b.is("[...document.querySelector('#log-source').options].map(o => o.value).join().startsWith(',gateway,runner local,chat on local')")
	only := func(source string) {
		t.Helper()
		b.is(fmt.Sprintf("(() => { const l = document.querySelector('#log-source'); l.value = %q; l.dispatchEvent(new Event('change')); return l.value === %[1]q })()", source))
		b.is(fmt.Sprintf("(() => { const t = document.querySelector('#log-lines').textContent; return t !== '' && t.split('\\n').every(l => l === '' || l.startsWith('[%s] ')) })()", source))
	}
	only("gateway")
	b.reads(`msg="gateway listens"`)
	b.do(chromedp.SendKeys(chromedp.CSS("#log-filter"), "no line has this"))
	b.reads("0 of")
	b.is("(() => { const f = document.querySelector('#log-filter'); f.value = 'LISTENS'; f.dispatchEvent(new Event('input')); return true })()")
	b.reads("1 of")
	b.is("(() => { const f = document.querySelector('#log-filter'); f.value = ''; f.dispatchEvent(new Event('input')); return true })()")
	only("runner local")
	only("chat on local")
	b.is("(() => { const l = document.querySelector('#log-source'); l.value = ''; l.dispatchEvent(new Event('change')); return true })()")
	b.reads("[gateway] time=")
	b.pictures("logs")

	// Sleep and wake.
	b.press("nav a[href='#pool']")
	b.press("button[data-do=sleep][data-host=local]")
	b.reads("local asleep")
	b.press("button[data-do=wake][data-host=local]")
	b.reads("local ready")
	b.sees("timeline", "always on they would have cost $0.00")
	b.reads("1 eviction")
	b.reads("host hours")
	b.is("document.querySelector('text.unwatched')?.textContent === 'not watched' && [...document.querySelectorAll('.span.ready title')].some(t => t.textContent.startsWith('ready from '))")
	for _, kind := range []string{"load", "evict"} {
		b.is(fmt.Sprintf("document.querySelector('.event.%s title')?.textContent.includes(' %s ')", kind, kind))
	}
}

// With keys the page asks for one, keeps it out of scripts' reach, and does what the key may do and no more.
func TestKeys(t *testing.T) {
	chromium(t)
	file := filepath.Join(t.TempDir(), "keys")
	const reader, limited, owner = "rv_a-key-that-may-use-models", "rv_a-key-for-one-model", "rv_a-key-that-may-do-anything"
	if err := os.WriteFile(file, []byte(reader+" infer\n"+limited+" infer,manage models=chat\n"+owner+" infer,manage\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"chat": "llm", "other": "llm"}.YAML(calls.LocalHost), Args: []string{"--api-keys-file", file, "--batch-dir", t.TempDir()}})
	b := browse(t, s.URL+"/ui")
	b.provokes("401", "403")
	b.is("document.querySelector('#login').open")
	b.pictures("login")
	enter := func(key string) {
		t.Helper()
		b.is("(document.querySelector('#login-key').value = '', true)")
		b.do(chromedp.SendKeys(chromedp.CSS("#login-key"), key))
		b.press("#login-form button[type=submit]")
	}
	enter("rv_nobody-has-this-key")
	b.reads("Unknown API key")
	enter(reader)
	b.reads("local ready")
	b.is("document.querySelector('button[data-do=load]').disabled && document.querySelector('button[data-do=sleep]').disabled")
	const load = "fetch('/v1/load', {method: 'POST', headers: {'x-reveille-token': %s}, body: '{\"model_name\":\"chat\"}'}).then(r => r.status)"
	const token = "(await (await fetch('/ui/session')).json()).token"
	if got := value[int](b, "(async () => "+fmt.Sprintf(load, token)+")()"); got != http.StatusForbidden {
		t.Errorf("a load with a key that may not manage: %d", got)
	}
	forget := func() {
		t.Helper()
		b.press("#key")
		b.is("document.querySelector('#login').open && document.querySelector('#key').textContent === 'Enter key'")
	}
	forget()
	enter(limited)
	b.reads("this key is limited to some")
	b.pictures("limited")
	b.press("nav a[href='#playground']")
	b.is("document.querySelector('#play-model').value === 'chat'")
	b.press("nav a[href='#logs']")
	b.reads("Logs need a key that may manage all models")
	if got := value[int](b, "(async () => (await fetch('/logs/stream', {headers: {'x-reveille-token': "+token+"}})).status)()"); got != http.StatusForbidden {
		t.Errorf("logs with a key for one model: %d", got)
	}
	b.press("nav a[href='#pool']")
	forget()
	enter(owner)
	b.press("button[data-do=load][data-model=chat]")
	b.reads("Loaded model: chat")
	if got := value[int](b, fmt.Sprintf(load, "''")); got != http.StatusUnauthorized {
		t.Errorf("a cookie without its token: %d", got)
	}
	batch := func(model string) {
		t.Helper()
		line := fmt.Sprintf(`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":%q,"messages":[{"role":"user","content":"hi"}]}}`, model)
		js := fmt.Sprintf(`(async () => {
			const headers = {'x-reveille-token': %s}, form = new FormData();
			form.append('purpose', 'batch');
			form.append('file', new Blob([%q]), 'a.jsonl');
			const file = await (await fetch('/v1/files', {method: 'POST', headers, body: form})).json();
			const body = JSON.stringify({input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h'});
			return (await fetch('/v1/batches', {method: 'POST', headers, body})).status;
		})()`, token, line)
		if got := value[int](b, js); got != http.StatusOK {
			t.Fatalf("a batch: %d", got)
		}
	}
	batch("chat")
	b.reads("chat completed 1 of 1 0")
	batch("other")
	b.reads("other in progress 0 of 1 0 No host that is awake has room for the model 'other'.")
	b.pictures("batches")
	if got := value[string](b, "document.cookie"); got != "" {
		t.Errorf("scripts see the cookie %q", got)
	}
	cookies := run(b, func(ctx context.Context, t *chromedp.Target) (network.GetCookiesResult, error) {
		return cdp.Call(ctx, t, network.GetCookies, network.GetCookiesParams{})
	}).Cookies
	if len(cookies) != 1 || !cookies[0].HTTPOnly || cookies[0].SameSite != network.CookieSameSiteStrict || strings.Contains(cookies[0].Value, owner) {
		t.Errorf("cookies: %+v", cookies)
	}
	forget()
	enter(reader)
	b.reads("local ready")
	b.is("(async () => (await (await fetch('/v1/batches', {headers: {'x-reveille-token': " + token + "}})).json()).data.length === 0)()")
	b.is("document.querySelector('#batches-title') === null")
}

// Twenty hosts and 200 models show, also while Redis is away.
func TestManyHosts(t *testing.T) {
	chromium(t)
	models, hosts := calls.Catalogue{}, "hosts:\n"
	for i := range 200 {
		models[fmt.Sprintf("model-%03d", i)] = "llm"
	}
	for i := range 20 {
		hosts += fmt.Sprintf("  host-%02d: {driver: wol, mac: \"02:00:00:00:00:%02d\", devices: [cpu, gpu, npu], memory: {gpu: 24GiB}, price: 1.2}\n", i, i)
	}
	redis := testenv.StartRedis(t)
	gateway := testenv.StartGateway(t, "redis://"+redis.Addr, "a secret of sixteen or more", models.YAML(hosts))
	b := browse(t, gateway.URL+"/ui")
	b.reads("200 of 200")
	b.is("document.querySelectorAll('.card.asleep').length === 20")
	b.do(chromedp.SendKeys(chromedp.CSS("#model-filter"), "-17"))
	b.reads("10 of 200")
	b.pictures("many")
	redis.Kill()
	b.reads("Redis unavailable")
	b.do(chromedp.Reload())
	b.reads("200 of 200")
	b.is("document.querySelectorAll('.card.asleep').length === 20")
	b.pictures("without-redis")
}
