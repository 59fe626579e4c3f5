// Package page opens the gateway's page in a real browser, on a system that really swaps, sleeps and wakes.
package page

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// chromium finds the browser. Without one the test is skipped, but not in CI, where the Makefile installs it.
func chromium(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err == nil {
		return path
	}
	const hint = "no browser: apt-get install chromium"
	if os.Getenv("CI") == "true" {
		t.Fatal(hint)
	}
	t.Skip(hint)
	return ""
}

// tab is one open page and what it complained of.
type tab struct {
	t   *testing.T
	ctx context.Context

	wanted []string // statuses of answers

	mistakes []string // of the goroutine that reads the console, until that ends
}

// browse starts a browser with a fresh profile and opens a page. The test fails if the page's console has an error.
func browse(t *testing.T, url string) *tab {
	t.Helper()
	opts := []chromedp.ExecAllocatorOption{
		chromedp.NoFirstRun, chromedp.Headless, chromedp.DisableGPU, chromedp.NoSandbox, chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(alloc)
	b := &tab{t: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // starts it
		t.Fatal("browser:", err)
	}
	var console sync.WaitGroup
	messages := chromedp.Console(ctx)
	console.Go(func() {
		for m, err := range messages {
			if err == nil && (m.IsException() || m.Type == chromedp.ConsoleError) {
				b.mistakes = append(b.mistakes, m.Text+" "+m.URL)
			}
		}
	})
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Log("browser:", err)
		}
		end()
		console.Wait()
		for _, m := range b.mistakes {
			if !b.isWanted(m) {
				t.Error("console:", m)
			}
		}
	})
	b.do(chromedp.Navigate(url))
	return b
}

// provokes makes answers with a status no mistakes of this page: the test wants them.
func (b *tab) provokes(statuses ...string) { b.wanted = append(b.wanted, statuses...) }

// isWanted reports whether a complaint is about a response that the test has provoked.
func (b *tab) isWanted(mistake string) bool {
	return slices.ContainsFunc(b.wanted, func(status string) bool { return strings.Contains(mistake, "responded with a status of "+status) })
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	run(b, chromedp.Steps(steps...))
}

func run[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, kit.Patience)
	defer cancel()
	out, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatal("browser:", err)
	}
	return out
}

// value evaluates JavaScript in the page; a promise is awaited.
func value[T any](b *tab, js string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
}

// text is what people read in the page, in one line.
func (b *tab) text() string {
	return strings.Join(strings.Fields(value[string](b, "document.body.innerText")), " ")
}

// reads waits until the page says something.
func (b *tab) reads(want string) {
	b.t.Helper()
	last := ""
	ok := func() bool { last = b.text(); return strings.Contains(last, want) }
	for deadline := time.Now().Add(kit.Patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("the page does not say %q:\n%s", want, last)
		}
	}
}

// is waits until JavaScript is true.
func (b *tab) is(js string) {
	b.t.Helper()
	kit.Eventually(b.t, js, func() bool { return value[bool](b, js) })
}

// press clicks what a selector names, once it is there and may be clicked.
func (b *tab) press(selector string) {
	b.t.Helper()
	q, _ := json.Marshal(selector)
	b.is(fmt.Sprintf("(() => { const e = document.querySelector(%s); if (!e || e.disabled) return false; e.click(); return true })()", q))
}

// sees opens a view, takes pictures of it at three widths in both themes, and has axe-core look at it.
func (b *tab) sees(view, ready string) {
	b.t.Helper()
	b.press(fmt.Sprintf("nav a[href='#%s']", view))
	b.reads(ready)
	b.pictures(view)
}

// pictures keeps pictures of the page as it is, as artifacts of the test, and has axe-core look at it.
func (b *tab) pictures(name string) {
	b.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		for _, width := range []int64{400, 900, 1400} {
			b.do(chromedp.EmulateViewport(width, 900))
			if over := value[int](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); over > 0 {
				b.t.Errorf("%s at %d px is %d px too wide", name, width, over)
			}
			png := run(b, chromedp.CaptureScreenshot())
			if err := os.WriteFile(filepath.Join(b.t.ArtifactDir(), fmt.Sprintf("%s-%s-%d.png", name, theme, width)), png, 0o600); err != nil {
				b.t.Error(err)
			}
		}
		b.axe(name + ", " + theme)
	}
	b.do(chromedp.ResetViewport())
}

// theme sets what the page sees as its user's choice.
func (b *tab) theme(name string) {
	b.t.Helper()
	run(b, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
	})
}

// axe reports serious faults of accessibility. `make need-chromium` fetches axe-core where npm is installed.
func (b *tab) axe(what string) {
	b.t.Helper()
	found, _ := filepath.Glob(filepath.Join(testenv.Root(b.t), ".cache", "axe", "*", "package", "axe.min.js"))
	if len(found) == 0 {
		b.t.Log("axe-core is not there: accessibility was not checked; `make need-chromium` fetches it with npm")
		return
	}
	source, err := os.ReadFile(found[0])
	if err != nil {
		b.t.Fatal(err)
	}
	value[int](b, string(source)+"\n;0") // DevTools may evaluate what the policy keeps pages from
	type fault struct {
		ID, Impact string
		Nodes      []struct {
			HTML           string `json:"html"`
			FailureSummary string `json:"failureSummary"`
		}
	}
	for _, f := range value[[]fault](b, "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)") {
		if f.Impact == "serious" || f.Impact == "critical" {
			b.t.Errorf("%s: axe-core: %s (%s): %d places, the first: %s\n%s", what, f.ID, f.Impact, len(f.Nodes), f.Nodes[0].HTML, f.Nodes[0].FailureSummary)
		}
	}
}
