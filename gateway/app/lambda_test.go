package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServeLambdaRefusesBadSettings(t *testing.T) {
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("TMPDIR", t.TempDir())
	s := LambdaSettings{ServeSettings: ServeSettings{GatewayFlags: frontDefaults()}}
	s.Models = filepath.Join(t.TempDir(), "none.yaml")
	if err := ServeLambda(t.Context(), s, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, errNoKeys) {
		t.Error("open to everybody:", err)
	}
	s.AdminKey = "a-key"
	err := ServeLambda(t.Context(), s, nil, slog.New(slog.DiscardHandler))
	for _, want := range []string{"--runner-secret", "none.yaml"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s in %v", want, err)
		}
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Error("left behind:", left, err)
	}
}
