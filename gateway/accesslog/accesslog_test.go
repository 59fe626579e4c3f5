package accesslog

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
		l.Write(Entry{
			Began: time.Unix(1700000000, 0), Request: "r-1", Method: "POST", Path: "/v1/\n\"\xff" + strings.Repeat("x", 5000), Status: 200, Duration: Milliseconds(1234567 * time.Nanosecond),
			UserAgent: strings.Repeat("a", 5000), Model: "chat", FirstByte: Milliseconds(time.Millisecond), Cold: new(bool), TokensOut: 8,
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

// A reader that has stopped holds up nobody: lines that find no room are counted, and those that waited come once it
// reads on.
func TestStopped(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // as writer too, so that opening it waits for nobody
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	l, end, err := Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	const wrote = 3 * queued // a pipe holds 64 KB
	for range wrote {
		l.Write(Entry{Request: "r-1"})
	}
	dropped := l.Dropped()
	if dropped < queued || dropped > 2*queued {
		t.Errorf("%d of %d lines were dropped, want those without room in the queue of %d", dropped, wrote, queued)
	}
	kept := make(chan int)
	go func() {
		n := 0
		for lines := bufio.NewScanner(reader); n < wrote-int(dropped) && lines.Scan(); n++ {
		}
		kept <- n
	}()
	select {
	case n := <-kept:
		if n != wrote-int(dropped) {
			t.Errorf("%d lines came, want %d", n, wrote-int(dropped))
		}
	case <-time.After(20 * time.Second):
		t.Error("the lines that waited did not come")
	}
	end()
}

// A pipe that nobody reads yet keeps nobody waiting: its reader gets the lines once it comes.
func TestPipeWithoutReader(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	go func() {
		defer close(lines)
		l, end, err := Open(pipe)
		if err != nil {
			t.Error(err)
			return
		}
		defer end()
		l.Write(Entry{Request: "r-1"})
		reader, err := os.Open(pipe)
		if err != nil {
			t.Error(err)
			return
		}
		defer reader.Close()
		line, err := bufio.NewReader(reader).ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		lines <- line
	}()
	select {
	case line := <-lines:
		if !strings.Contains(line, `"r-1"`) {
			t.Errorf("the reader got %q", line)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a pipe without a reader holds up who opens it")
	}
}

func TestOff(t *testing.T) {
	l, end, err := Open("")
	if l != nil || err != nil {
		t.Fatal(l, err)
	}
	l.Write(Entry{})
	end()
	if l.Dropped() != 0 {
		t.Error("a log that writes nothing drops lines")
	}
	if _, _, err := Open(filepath.Join(t.TempDir(), "no", "folder")); err == nil {
		t.Error("a file in no folder is opened")
	}
}
