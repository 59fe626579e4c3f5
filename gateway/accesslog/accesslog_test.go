package accesslog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A line is one JSON object, whatever a client puts into the texts, and these are bounded.
func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	for range 2 { // appends
		l, end, err := Open(file)
		if err != nil {
			t.Fatal(err)
		}
		l.Write(&Entry{
			Began: time.Unix(1700000000, 0), Request: "r-1", Method: "POST", Path: "/v1/\n\"\xff" + strings.Repeat("x", 5000), Status: 200, Duration: 1234567 * time.Nanosecond,
			UserAgent: strings.Repeat("a", 5000), Model: "chat", FirstByte: time.Millisecond, TokensOut: 8,
		})
		end()
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), text)
	}
	for _, line := range lines {
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil || len(line) > 1000 {
			t.Errorf("%v, %d bytes: %s", err, len(line), line)
		}
		for key, want := range map[string]any{
			"request": "r-1", "status": 200.0, "duration_ms": 1.234, "model": "chat", "cold": false, "first_byte_ms": 1.0, "tokens_out": 8.0, "level": nil, "msg": nil, "key": nil, "tokens_in": nil,
		} {
			if got[key] != want {
				t.Errorf("%s is %v, want %v: %s", key, got[key], want, line)
			}
		}
	}
}

func TestOff(t *testing.T) {
	l, end, err := Open("")
	if l != nil || err != nil {
		t.Fatal(l, err)
	}
	l.Write(&Entry{})
	end()
	if _, _, err := Open(filepath.Join(t.TempDir(), "no", "folder")); err == nil {
		t.Error("a file in no folder is opened")
	}
}
