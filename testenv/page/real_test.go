package page

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"reveille/testenv"
)

// The playground speaks to a real engine: a conversation about a picture, whose second turn finds tokens of the first in
// the engine's cache, embeddings that show which texts are alike, and ranks.
func TestPlaygroundWithRealEngine(t *testing.T) {
	chromium(t)
	testenv.Engines(t)
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), "testenv/local/models.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Models: string(text), Args: []string{"--hold=100s"}})
	b := browse(t, s.URL+"/ui#playground")
	picture := filepath.Join(t.TempDir(), "picture.png")
	if err := os.WriteFile(picture, testenv.Picture(7, 64, 64), 0o600); err != nil {
		t.Fatal(err)
	}
	choose := func(model string) {
		t.Helper()
		b.is(fmt.Sprintf("(() => { const l = document.querySelector('#play-model'); if (!l) return false; l.value = %q; l.dispatchEvent(new Event('change')); return l.value === %[1]q })()", model))
	}
	choose("gemma-3-270m-vision")
	say := func(words string, withPicture bool, answers int) {
		t.Helper()
		if withPicture {
			b.do(chromedp.SetUploadFiles(chromedp.CSS("#play-picture"), []string{picture}))
			b.is("document.querySelector('#play-picture').files.length === 1")
		}
		b.is("(() => { document.querySelector('#play-max').value = 8; document.querySelector('#play-temp').value = 0; return true })()")
		b.do(chromedp.SendKeys(chromedp.CSS("#play-text"), words))
		b.press("#play-go")
		b.is(fmt.Sprintf("[...document.querySelectorAll('.turn.assistant .stats')].filter((s) => s.textContent.includes('tokens/s')).length === %d", answers))
	}
	say("What is this?", true, 1)
	b.pictures("playground-picture")
	say("And what colour?", false, 2)
	b.is(`/ [1-9][0-9]* cached.* media cache hit=1, miss=0/.test([...document.querySelectorAll('.turn.assistant .stats')].at(-1).textContent)`)
	b.runs("gemma-3-270m-vision", "")

	choose("minilm-l6-v2-twin")
	b.press("#play-go")
	b.reads("3 vectors of 384")
	choose("minilm-l6-v2")
	b.press("#play-go")
	b.reads("3 vectors of 384")
	b.is(`(() => { const c = (r, k) => Number(document.querySelectorAll('.matrix tbody tr')[r].querySelectorAll('td')[k].textContent); return c(0, 0) > 0.99 && c(0, 1) > c(0, 2) })()`)
	b.is("document.querySelector('#play-out .stats').textContent.includes(' evicted minilm-l6-v2-twin ')")
	b.runs("minilm-l6-v2", "[[")
	choose("minilm-reranker")
	b.is("!!(document.querySelector('#play-query').value = 'a true story')")
	b.press("#play-go")
	b.reads("3 documents")
	b.runs("minilm-reranker", "relevance_score")
	b.is("document.querySelector('#code-text').textContent.includes('\"a true story\"')")
}

// runs runs what the playground gives as Python: it must name the model, end well, and print a text.
func (b *tab) runs(model, prints string) {
	b.t.Helper()
	b.press("#play-python")
	code := value[string](b, "document.querySelector('#code-text').textContent")
	b.press("#code-close")
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, testenv.Python(b.t), "-c", code).CombinedOutput()
	if err != nil || !strings.Contains(code, model) || len(out) == 0 || !strings.Contains(string(out), prints) {
		b.t.Errorf("%v: %s\nof\n%s", err, out, code)
	}
}
