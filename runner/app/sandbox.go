package app

import (
	"fmt"
	"log/slog"

	"reveille/infra/catalog"
	"reveille/runner/sandbox"
)

// newSandbox detects how engines can be confined on this machine, and logs it.
func newSandbox(s HostSettings, p parsed, log *slog.Logger) (*sandbox.Sandbox, error) {
	sb, err := sandbox.New(sandbox.Config{
		Mode: s.Sandbox, User: s.EngineUser, Memory: p.engineMemory, Private: []string{s.StateDir}, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("--engine-user: %w", err)
	}
	r := sb.Report()
	log.Info("sandbox of engines", "mode", r.Mode, "measures", r.On, "missing", r.Missing)
	if err := r.Check(); err != nil {
		log.Error("no engine will start", "error", err)
	}
	return sb, nil
}

// engineMemory reads --engine-memory.
func engineMemory(text string) (int64, error) {
	if text == "" {
		total, _ := mainMemory()
		return total / 10 * 9, nil
	}
	n, err := catalog.ParseSize(text)
	if err == nil && n <= 0 {
		err = fmt.Errorf("%q is not a size above 0, such as 20GiB", text)
	}
	if err != nil {
		return 0, fmt.Errorf("--engine-memory: %w", err)
	}
	return n, nil
}
