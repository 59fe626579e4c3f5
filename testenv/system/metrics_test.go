package system

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"reveille/testenv/calls"
)

// TestMetadataOfMetrics: gateway and runner tell HELP and TYPE of every family, once, in front of its series.
func TestMetadataOfMetrics(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"m": "llm", "e": "embedding"})
	w.Use("m")
	w.Use("e")
	runner := w.Rdb.HGet(t.Context(), "rv:{main}:host:local", "addr").Val()
	for url, histogram := range map[string]string{w.URL: "reveille_gateway_request_seconds", "http://" + runner: "reveille_runner_embedding_batch_tokens"} {
		a := calls.Get(t.Context(), http.DefaultClient, url+"/metrics")
		if a.Status != http.StatusOK {
			t.Fatal(a)
		}
		kinds := families(t, string(a.Body))
		if kinds[histogram] != "histogram" {
			t.Errorf("%s/metrics: %s is a %s", url, histogram, kinds[histogram])
		}
		if len(kinds) < 20 {
			t.Errorf("%s/metrics: only the families %v", url, kinds)
		}
	}
}

// families reads an exposition strictly and returns each family's kind.
func families(t *testing.T, text string) map[string]string {
	t.Helper()
	series := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? [^ ]+$`)
	kinds := map[string]string{}
	family := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		word := append(strings.SplitN(line, " ", 4), "", "", "", "")
		m := series.FindStringSubmatch(line)
		switch {
		case word[1] == "HELP" && word[2] != "":
		case word[1] == "TYPE" && kinds[word[2]] == "" && slices.Contains([]string{"counter", "gauge", "histogram", "summary"}, word[3]):
			family, kinds[word[2]] = word[2], word[3]
		case m == nil:
			t.Errorf("%q is no line of the format, or out of place", line)
		default:
			rest, own := strings.CutPrefix(m[1], family)
			several := kinds[family] == "histogram" || kinds[family] == "summary"
			if !own || rest != "" && !(several && slices.Contains([]string{"_bucket", "_sum", "_count"}, rest)) {
				t.Errorf("%q is in the family %s, a %s", line, family, kinds[family])
			}
		}
	}
	return kinds
}
