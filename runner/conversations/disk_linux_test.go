package conversations

import (
	"bytes"
	"path/filepath"
	"syscall"
	"testing"
)

// A full disk keeps what fits, leaves nothing behind of the rest, and takes the next conversation once there is room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skip("a small disk needs root's rights to mount: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, p := open(t, dir, 1<<30), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	l := newLlama(t, 2)
	run(t, s, p, l, nil, func(*Engine) {
		l.slots[0], l.task[0] = count(1, 400_000), 7
		l.slots[1], l.task[1] = count(2, 200), 6
	})
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("on the full disk are %v, want one conversation", got)
	}
	var text bytes.Buffer
	s.cfg.Metrics.WritePrometheus(&text)
	if !bytes.Contains(text.Bytes(), []byte(`refused_total{reason="not_stored"} 1`)) {
		t.Errorf("the metrics are %s", text.Bytes())
	}
	l = newLlama(t, 2)
	got := run(t, s, p, l, nil, l.holding(0, count(3, 300), 8))
	if len(got[0]) != 200 {
		t.Errorf("%d tokens were restored, want those of the conversation that fit", len(got[0]))
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("then there are %v", got)
	}
}
