package app

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metrics"

	"reveille/runner/weights"
)

func TestInvalidWeightsFlagsAreRefused(t *testing.T) {
	parse := func(args ...string) Settings {
		t.Helper()
		s, err := flags(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Setenv("HF_TOKEN", "hf_1") // as the hub's own tools have them
	t.Setenv("HF_ENDPOINT", "https://mirror.example")
	if s := parse(); s.HFToken != "hf_1" || s.HFEndpoint != "https://mirror.example" || s.WeightsBytes != "0" {
		t.Errorf("%+v", s.Weights)
	}
	t.Setenv("REVEILLE_HF_TOKEN", "hf_2")
	if s := parse("--hf-endpoint=http://127.0.0.1:1", "--weights-bytes=20GiB"); s.HFToken != "hf_2" || s.HFEndpoint != "http://127.0.0.1:1" || s.Check() != nil {
		t.Errorf("%+v %v", s.Weights, s.Check())
	}
	for want, args := range map[string][]string{
		"--weights-bytes": {"--weights-bytes=much"},
		"--hf-endpoint":   {"--hf-endpoint=https://me:SECRET@hub"},
	} {
		if err := parse(args...).Check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// The folder is the runner's own: in the state folder by default, and a second owner is refused.
func TestWeightsFolderIsReachableForEngines(t *testing.T) {
	s := Settings{HostSettings: HostSettings{StateDir: t.TempDir()}}
	_, end, err := weightsCache(s, "h", metrics.NewSet(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.WeightsDir = filepath.Join(s.StateDir, "weights-h")
	if _, _, err := weightsCache(s, "h2", metrics.NewSet(), slog.New(slog.DiscardHandler)); !errors.Is(err, weights.ErrInUse) || !strings.Contains(err.Error(), "--weights-dir") {
		t.Errorf("%v", err)
	}
	end()
	_, end, err = weightsCache(s, "h2", metrics.NewSet(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	end()
}
