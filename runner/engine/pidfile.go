package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
)

// markName is the environment variable that identifies the processes of an engine even when their leader is gone.
const markName = "REVEILLE_ENGINE"

func newMark() string { return markName + "=" + randomHex(16) }

// A pidRecord names one engine process and its group.
type pidRecord struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
	Mark  string `json:"mark"`
}

// pidFileContent is the file's content.
type pidFileContent struct {
	Boot    string      `json:"boot"`
	Folder  string      `json:"folder"` // that it was written in: a copy names another runner's engines
	Owner   pidRecord   `json:"owner"`  // the runner
	Engines []pidRecord `json:"engines"`
}

// folderID identifies a folder of this machine even after it was moved.
func folderID(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// A PIDFile records a runner's engines. If the runner is killed, its next start finds what they left behind: an engine
// dies with the runner, but not the processes that the engine started. Only one runner at a time may use a file. A nil
// PIDFile records nothing. It is safe for concurrent use.
type PIDFile struct {
	path string

	mu   sync.Mutex
	file pidFileContent
}

// OpenPIDFile reads the file at path, which need not exist; its folder must. A file of another boot of the machine or
// another folder, one whose runner is alive, and one that does not parse count as empty.
func OpenPIDFile(path string) (*PIDFile, error) {
	folder := folderID(filepath.Dir(path))
	l := &PIDFile{path: path}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("list of engine processes: %w", err)
	default:
		if f := &l.file; json.Unmarshal(data, f) != nil || f.Boot != bootID() || f.Folder != folder || f.Owner.isRunning() {
			l.file = pidFileContent{}
		}
	}
	l.file.Boot, l.file.Folder = bootID(), folder
	l.file.Owner = pidRecord{PID: os.Getpid(), Start: startTicks(os.Getpid())}
	return l, nil
}

// KillLeftovers kills what is left of the engines that an earlier runner recorded, and forgets them. It returns the pids
// that it killed, and an error if some are still alive when ctx ends. Call it before the first [Start].
//
// It kills only the recorded leader with the recorded start time, and members of its group that carry its mark.
func (l *PIDFile) KillLeftovers(ctx context.Context) ([]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var killed []int
	for _, e := range l.file.Engines {
		for _, pid := range e.alive() {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed = append(killed, pid)
			}
		}
	}
	for _, e := range l.file.Engines {
		for len(e.alive()) > 0 {
			select {
			case <-ctx.Done():
				return killed, fmt.Errorf("%w: process group %d", ErrStuck, e.PID)
			case <-time.After(firstPoll):
			}
		}
	}
	l.file.Engines = nil
	return killed, l.saveLocked()
}

// alive lists the live processes of the engine, leader and group.
func (e pidRecord) alive() []int {
	return slices.DeleteFunc(groupMembers(e.PID), func(pid int) bool {
		return (pid != e.PID || !e.isRunning()) && !hasEnv(pid, e.Mark)
	})
}

// isRunning reports whether the recorded process is alive.
func (e pidRecord) isRunning() bool { return e.Start != 0 && startTicks(e.PID) == e.Start }

// add records a process. A failure to write the file is only logged: engines also die with the runner.
func (l *PIDFile) add(e pidRecord, log *slog.Logger) {
	l.change(log, func(list []pidRecord) []pidRecord { return append(list, e) })
}

// remove forgets the process that led group pid.
func (l *PIDFile) remove(pid int, log *slog.Logger) {
	l.change(log, func(list []pidRecord) []pidRecord {
		return slices.DeleteFunc(list, func(e pidRecord) bool { return e.PID == pid })
	})
}

func (l *PIDFile) change(log *slog.Logger, f func([]pidRecord) []pidRecord) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file.Engines = f(l.file.Engines)
	if err := l.saveLocked(); err != nil {
		log.Warn("list of engine processes not written", "error", err)
	}
}

// saveLocked replaces the file in one step.
func (l *PIDFile) saveLocked() error {
	data, err := json.Marshal(l.file)
	if err != nil {
		return err
	}
	return renameio.WriteFile(l.path, data, 0o600)
}
